"""What counts as an integer and a number, and how what does not is refused."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import tensorflow as tf

from overlap_train._support import arguments
from tests.support.values import Unprintable


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


@pytest.mark.parametrize(
    ("value", "counts"),
    [
        (0, True),
        (7, True),
        (8, False),
        (-1, False),
        (True, False),
        (1.0, False),
        ("1", False),
        (None, False),
        (np.int64(1), False),
    ],
)
def test_a_stored_count_is_an_int_in_its_range_and_nothing_like_one(value, counts):
    assert arguments.is_count(value, 7) is counts


@pytest.mark.parametrize(
    ("value", "number"),
    [(np.array(3), 3), (np.float64(0.5), 0.5), (np.array([3]), None), ("3", None), (None, None), ([], None)],
)
def test_a_number_is_taken_out_of_what_holds_only_it(value, number):
    found = arguments.scalar(value)
    assert found is value if number is None else (type(found), found) == (type(number), number)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e5m2", "float16", "float64", "int32", "bool"])
@pytest.mark.parametrize("shape", [(), (2,), (0,), (1, 1)])
def test_a_tensor_is_an_array_of_its_own_type(dtype, shape):
    tensor = tf.cast(tf.ones(shape), dtype)
    array = arguments.array_of(tensor)
    assert type(array) is np.ndarray
    assert (array.dtype, array.shape) == (tensor.dtype.as_numpy_dtype, shape)
    assert array.astype("float64").tolist() == np.ones(shape).tolist()


@pytest.mark.parametrize("value", [2, 2.5, np.float32(2), np.array([2]), [2, 3]])
def test_what_is_no_tensor_is_what_numpy_makes_of_it(value):
    np.testing.assert_array_equal(arguments.array_of(value), np.asarray(value))


def test_a_number_is_left_in_what_raises():
    class Odd:
        shape = ()

        def numpy(self):
            raise RuntimeError

    odd = Odd()
    assert arguments.scalar(odd) is odd
