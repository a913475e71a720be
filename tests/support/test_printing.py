"""What a stream's encoding has not is written as a number, and what cannot tell is told as such."""

from __future__ import annotations

import io

import pytest

from overlap_train._support.printing import is_watched, printable, told


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


@pytest.mark.parametrize("stream", [io.StringIO(), object(), None])
def test_a_stream_that_names_no_encoding_is_taken_for_utf_8(stream):
    assert printable("größer \ud800", stream) == "größer \\ud800"


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Undecided:
    def isatty(self):
        raise RuntimeError("not open yet")


@pytest.mark.parametrize(
    ("stream", "expected"),
    [(Terminal(), True), (io.StringIO(), False), (Undecided(), False), (object(), False), (None, False)],
)
def test_a_terminal_is_what_says_so(stream, expected):
    assert is_watched(stream) is expected


class Mute(Exception):
    def __repr__(self):
        raise RuntimeError("no text")

    __str__ = __repr__


def test_an_error_that_cannot_be_printed_is_told_by_its_class():
    assert told(KeyError("a")) == "KeyError: 'a'"
    assert told(Mute()) == "Mute: it cannot be printed"
