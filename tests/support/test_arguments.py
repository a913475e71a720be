"""What counts as a flag, a choice and a path, and how what does not is refused."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from overlap_train._support import arguments
from tests.support.values import Number, Text, Unprintable


@pytest.mark.parametrize("value", [True, False, 0, 1, np.True_, np.int64(1), np.array(True)])
def test_flags_may_be_zero_or_one(value):
    assert arguments.require_flag("cache", value) is bool(value)


@pytest.mark.parametrize("value", [2, 1.0, "True", None, [], np.array([True]), Unprintable(), Number(1)])
def test_what_is_no_flag_is_refused_by_name(value):
    with pytest.raises(TypeError, match="cache must be True or False; got"):
        arguments.require_flag("cache", value)


@pytest.mark.parametrize("value", [None, 1, "c", ["a"], np.array(["a", "b"]), Unprintable(), b"a", Text("c")])
def test_what_is_no_choice_is_refused_with_the_choices(value):
    with pytest.raises(ValueError, match="mode must be one of 'a', 'b'; got"):
        arguments.require_choice("mode", value, ("a", "b"))
    assert type(arguments.require_choice("mode", np.str_("a"), ("a", "b"))) is str


@pytest.mark.parametrize("value", ["", b"x", 3, None, "a\0b", ["x"]])
def test_what_is_no_path_is_refused_by_name(value):
    with pytest.raises((TypeError, ValueError), match="directory must be a path"):
        arguments.require_path("directory", value)


@pytest.mark.parametrize("kind", [str, np.str_, Text])
def test_a_text_of_any_class_is_taken_by_its_characters(kind):
    taken = [
        arguments.require_choice("mode", kind("a"), ("a", "b")),
        arguments.require_text("mode", kind("a")),
        str(arguments.require_path("mode", kind("a"))),
        arguments.plain_text(kind("a")),
    ]
    assert [(type(each), each) for each in taken] == [(str, "a")] * 4
    assert arguments.auto_or("mode", kind("auto"), arguments.require_flag, expected="a flag") == "auto"
    assert arguments.is_text(kind("a"), "b", "a")
    assert not arguments.is_text(kind("a"), "b")
    with pytest.raises(ValueError, match="mode must be a flag; got"):
        arguments.auto_or("mode", kind("b"), arguments.require_flag, expected="a flag")
    with pytest.raises(ValueError, match="mode must not be empty"):
        arguments.require_text("mode", kind(""))


@pytest.mark.parametrize("path", ["x" * 10**6, "x/" * 2048, "ä" * 2048])
def test_a_path_that_no_system_call_takes_is_refused_with_its_beginning(path):
    size = len(path.encode())
    with pytest.raises(ValueError, match=rf"directory must be a path of at most .* of {size}$") as raised:
        arguments.require_path("directory", path)
    assert len(str(raised.value)) < 300
    assert arguments.require_path("directory", "x/" * 1000)


def test_importing_the_checks_does_not_start_tensorflow():
    code = (
        "import sys, overlap_train._support.fit_arguments\n"
        "assert not {'tensorflow', 'keras'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
