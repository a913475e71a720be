"""What counts as a value of a kind and a number, and how it is printed and sent."""

import io
import json
import math
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from overlap_train._support import arguments
from overlap_train._support.encoding import array_of, encoded
from overlap_train._support.files import require_path
from overlap_train._support.printing import error_text, is_watched, printable
from tests.support.values import Unprintable


def require_choice(name, value):
    return arguments.require_choice(name, value, ("a", "b"))


def require_count(name, value):
    return arguments.require_count(name, value, minimum=1)


def require_share(name, value):
    return arguments.require_real(name, value, minimum=0, maximum=1)


def require_any_size(name, value):
    return arguments.require_real(name, value, infinite=True)


TAKEN = {
    "a flag": (arguments.require_flag, True, [True, 1, np.True_, np.int64(1), np.array(True)]),
    "a flag that is not set": (arguments.require_flag, False, [False, 0]),
    "a choice": (require_choice, "a", ["a", np.str_("a")]),
    "a text": (arguments.require_text, "a", ["a", np.str_("a")]),
    "a path": (lambda name, value: str(require_path(name, value)), "a", ["a", np.str_("a"), Path("a")]),
    "an integer": (require_count, 3, [3, np.uint64(3), np.array(3)]),
    "a number": (require_share, 0.5, [0.5, np.float16(0.5), np.array(0.5), Fraction(1, 2)]),
    "a number without an end": (require_any_size, math.inf, [math.inf]),
}


@pytest.mark.parametrize(("check", "expected", "values"), TAKEN.values(), ids=TAKEN)
def test_whatever_stands_for_a_value_of_a_kind_is_one_of_python_s(check, expected, values):
    for value in values:
        found = check("it", value)
        assert (type(found), found) == (type(expected), expected)


REFUSED = {
    "a flag": (arguments.require_flag, "it must be True or False; got", [2, 1.0, "True", None]),
    "a choice": (require_choice, "it must be one of 'a', 'b'; got", [None, 1, "c", np.array(["a", "b"])]),
    "a text": (arguments.require_text, "it must not be empty", ["", np.str_("")]),
    "a path": (require_path, "it must be a path", ["", b"x", 3, None]),
    "an integer": (
        *(require_count, "^it must be an integer; got"),
        (True, np.True_, 3.0, np.array(2.7), np.array([3]), "3", None),
    ),
    "a number": (
        *(arguments.require_real, "^it must be"),
        [True, np.True_, "0.5", None, np.array([0.5]), math.nan, np.float32("nan"), math.inf],
    ),
    "a time that a thread can wait for": (arguments.require_seconds, "it must be", [0, -1, math.inf, 1e300]),
}


@pytest.mark.parametrize(("check", "message", "values"), REFUSED.values(), ids=REFUSED)
def test_what_is_none_of_its_kind_is_refused_by_name(check, message, values):
    for value in values:
        with pytest.raises((TypeError, ValueError), match=message):
            check("it", value)


@pytest.mark.parametrize("value", [0, 2**63, -(10**5000), 10**5000], ids=lambda value: value.bit_length())
def test_integers_out_of_range_are_refused_however_long(value):
    with pytest.raises(ValueError, match=r"^steps must be at (least|most)") as info:
        require_count("steps", value)
    assert len(str(info.value)) < 300


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e5m2", "float16", "float64", "int32", "bool"])
@pytest.mark.parametrize("shape", [(), (2,), (0,), (1, 1)])
def test_a_tensor_is_an_array_of_its_own_type(dtype, shape):
    tensor = tf.cast(tf.ones(shape), dtype)
    array = array_of(tensor)
    assert type(array) is np.ndarray
    assert (array.dtype, array.shape) == (tensor.dtype.as_numpy_dtype, shape)
    assert array.astype("float64").tolist() == np.ones(shape).tolist()
    for value in (2, 2.5, np.float32(2), np.array([2]), [2, 3]):
        np.testing.assert_array_equal(array_of(value), np.asarray(value))


@pytest.mark.parametrize(
    ("encoding", "text", "expected"),
    [
        ("utf-8", "größer …", "größer …"),
        ("utf-8", "a\udcffb", "a\\udcffb"),
        ("ascii", "größer\n", "gr\\xf6\\xdfer\n"),
        ("latin-1", "größer …", "größer \\u2026"),
        ("utf-16", "größer", "größer"),
    ],
)
def test_what_is_returned_can_be_written(encoding, text, expected):
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="")
    assert printable(text, stream) == expected
    stream.write(expected)


def test_what_says_nothing_of_itself_is_no_terminal_and_writes_utf_8():
    undecided = SimpleNamespace(isatty=lambda: [][0])
    assert is_watched(SimpleNamespace(isatty=lambda: True))
    for stream in (io.StringIO(), undecided, None):
        assert printable("größer \ud800", stream) == "größer \\ud800"
        assert not is_watched(stream)


class Mute(Exception):
    def __repr__(self):
        raise RuntimeError("no text")

    __str__ = __repr__


def test_an_error_that_cannot_be_printed_is_told_by_its_class():
    assert error_text(KeyError("a")) == "KeyError: 'a'"
    assert error_text(Mute()) == "Mute: it cannot be printed"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(0.5), 0.5),
        (np.int64(3), 3.0),
        (tf.constant([1.5]), [1.5]),
        (np.array([[1, 2]]), [[1.0, 2.0]]),
        (np.bool_(True), 1.0),
        (2**70, 2**70),
        ("größer \udcff", "größer \udcff"),
        (Path("a"), "PosixPath('a')"),
        ({1, 2}, "{1, 2}"),
        (None, None),
    ],
    ids=str,
)
def test_whatever_stands_in_logs_can_be_sent(value, expected):
    sent = json.loads(encoded([{"loss": 1.0, "odd": value}, True]))
    assert sent == [{"loss": 1.0, "odd": expected}, True]


def test_what_can_be_sent_in_no_way_keeps_nobody_waiting():
    sent = json.loads(encoded({"odd": Unprintable(), (1, 2): 3.0, "loss": 1.0}))
    assert sent.keys() == {"odd", "loss"}
