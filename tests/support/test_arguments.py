"""What counts as an integer, a number, a flag and a choice, and how what does not is refused."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import tensorflow as tf

from overlap_train._support import arguments


class Unprintable:
    def __repr__(self):
        raise RuntimeError("no text")

    def __index__(self):
        raise RuntimeError("no number")

    def __float__(self):
        raise RuntimeError("no number")


@pytest.mark.parametrize("value", [3, np.int8(3), np.uint64(3), np.array(3), tf.Tensor])
def test_whatever_stands_for_an_integer_is_one(value):
    if value is tf.Tensor:
        value = tf.constant(3)  # not earlier: collecting tests must not start TensorFlow
    count = arguments.require_count("steps", value, minimum=1)
    assert count == 3
    assert type(count) is int


@pytest.mark.parametrize(
    "value",
    [
        True,
        np.True_,
        3.0,
        np.float32(3),
        np.array(2.7),
        np.array([3]),
        "3",
        b"3",
        None,
        [3],
        3j,
        Unprintable(),
    ],
)
def test_what_is_no_integer_is_refused_by_name(value):
    with pytest.raises(TypeError, match=r"^steps must be an integer; got"):
        arguments.require_count("steps", value, minimum=1)


@pytest.mark.parametrize(
    "value", [0, -1, 2**63, -(10**5000), 10**5000], ids=lambda value: f"{value.bit_length()}-bits"
)
def test_integers_out_of_range_are_refused_however_long(value):
    with pytest.raises(ValueError, match=r"^steps must be at (least|most)") as caught:
        arguments.require_count("steps", value, minimum=1)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "value",
    [0.5, np.float16(0.5), np.float64(0.5), np.array(0.5), Fraction(1, 2), tf.bfloat16.as_numpy_dtype(0.5)],
)
def test_whatever_stands_for_a_number_is_one(value):
    real = arguments.require_real("share", value, minimum=0, maximum=1)
    assert real == 0.5
    assert type(real) is float


@pytest.mark.parametrize(
    "value", [True, np.True_, "0.5", None, 0.5j, np.array([0.5]), Unprintable(), [0.5], 1 << 5000]
)
def test_what_is_no_number_is_refused_by_name(value):
    with pytest.raises((TypeError, ValueError), match=r"^share must be"):
        arguments.require_real("share", value)


@pytest.mark.parametrize("value", [math.nan, np.float32("nan"), math.inf, -math.inf])
def test_what_is_not_finite_is_refused_unless_infinity_has_a_meaning(value):
    with pytest.raises(ValueError, match="share must be finite"):
        arguments.require_real("share", value)
    if math.isnan(value):
        with pytest.raises(ValueError, match="share must be finite; got"):
            arguments.require_real("share", value, infinite=True)
    else:
        assert arguments.require_real("share", value, infinite=True) == value


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, 1e300])
def test_a_time_that_no_thread_can_wait_for_is_refused(value):
    with pytest.raises(ValueError, match="timeout_s must be"):
        arguments.require_seconds("timeout_s", value)


@pytest.mark.parametrize("value", [True, False, 0, 1, np.True_, np.int64(1), np.array(True)])
def test_flags_may_be_zero_or_one(value):
    assert arguments.require_flag("cache", value) is bool(value)


@pytest.mark.parametrize("value", [2, 1.0, "True", None, [], np.array([True]), Unprintable()])
def test_what_is_no_flag_is_refused_by_name(value):
    with pytest.raises(TypeError, match="cache must be True or False; got"):
        arguments.require_flag("cache", value)


@pytest.mark.parametrize("value", [None, 1, "c", ["a"], np.array(["a", "b"]), Unprintable(), b"a"])
def test_what_is_no_choice_is_refused_with_the_choices(value):
    with pytest.raises(ValueError, match="mode must be one of 'a', 'b'; got"):
        arguments.require_choice("mode", value, ("a", "b"))
    assert type(arguments.require_choice("mode", np.str_("a"), ("a", "b"))) is str


@pytest.mark.parametrize("value", ["", b"x", 3, None, "a\0b", ["x"]])
def test_what_is_no_path_is_refused_by_name(value):
    with pytest.raises((TypeError, ValueError), match="directory must be a path"):
        arguments.require_path("directory", value)


def test_fit_takes_no_epoch_at_all_and_the_scalars_of_numpy():
    arguments.check_fit(epochs=0)
    arguments.check_fit(
        epochs=np.int64(2),
        batch_size=np.int32(8),
        validation_split=np.float32(0.25),
        shuffle=np.True_,
        validation_freq=np.int64(2),
        verbose=np.int64(0),
    )
    arguments.check_fit(shuffle=1, verbose=True)


def test_epochs_to_validate_may_be_a_range_of_any_length():
    validated = arguments.epoch_selector(range(2, 10**12, 2))
    assert [validated(epoch) for epoch in range(4)] == [False, True, False, True]


def test_importing_the_checks_does_not_start_tensorflow():
    import subprocess
    import sys

    code = (
        "import sys, overlap_train._support.arguments; assert not {'tensorflow', 'keras'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
