"""One line that is drawn again and again, on a stream that may break under it."""

from __future__ import annotations

import io
import os

import pytest

from overlap_train.monitoring.live_line import LiveLine, TolerantStream, is_terminal
from tests.monitoring.test_progress import _resize, _Terminal


class Breaks(io.StringIO):
    """Breaks after some characters."""

    def __init__(self, room=3):
        super().__init__()
        self.room, self.attempts = room, 0

    def write(self, text):
        self.attempts += 1
        if self.attempts > self.room:
            raise BrokenPipeError
        return super().write(text)


def test_a_stream_that_breaks_is_silent_from_then_on():
    below = Breaks(1)
    stream = TolerantStream(below)
    assert [stream.write(text) for text in ("one", "two", "three")] == [3, 3, 5]
    stream.flush()
    assert (below.getvalue(), below.attempts) == ("one", 2)


def test_a_closed_stream_is_a_broken_one_and_a_missing_character_is_not():
    closed = io.StringIO()
    closed.close()
    TolerantStream(closed).write("lost")
    below = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    stream = TolerantStream(below)
    for text in ("größer, ", "smaller"):
        stream.write(text)
    stream.flush()
    assert below.buffer.getvalue() == rb"gr\xf6\xdfer, smaller"


def test_no_stream_is_a_broken_one():
    stream = TolerantStream(None)
    assert stream.write("lost") == 4
    stream.flush()
    assert not is_terminal(stream)


class Teed:
    """What a program puts in the place of standard output to keep what is written."""

    def __init__(self):
        self.written = []

    def write(self, text):
        self.written.append(text)

    def flush(self):
        """Nothing waits."""


class Undecided(Teed):
    def isatty(self):
        raise RuntimeError("not open yet")


@pytest.mark.parametrize("kind", [Teed, Undecided])
def test_what_cannot_tell_whether_it_is_a_terminal_is_none(kind):
    below = kind()
    stream = TolerantStream(below)
    assert not is_terminal(stream)
    stream.write("kept")
    stream.flush()
    assert below.written == ["kept"]


def test_it_passes_for_the_stream_below():
    below = io.StringIO()
    one, other = TolerantStream(below), TolerantStream(below)
    assert one == below
    assert one == other
    assert hash(one) == hash(below)
    assert one != TolerantStream(io.StringIO())
    assert one.closed is False


@pytest.mark.parametrize(
    ("term", "columns", "lines", "expected"),
    [("xterm", 80, 24, True), ("dumb", 80, 24, False), ("xterm", 0, 0, False)],
)
def test_a_terminal_has_a_size_and_can_go_back(monkeypatch, term, columns, lines, expected):
    monkeypatch.setenv("TERM", term)
    _resize(monkeypatch, columns, lines)
    assert is_terminal(_Terminal()) is expected
    assert not is_terminal(io.StringIO())


def test_a_terminal_without_a_descriptor_is_believed(monkeypatch):
    def fails(descriptor):
        raise OSError

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(os, "get_terminal_size", fails)
    assert is_terminal(_Terminal())


class Console:
    """What a program that shows the output itself puts in the place of standard output."""

    def __init__(self):
        self.text = ""

    def write(self, text):
        self.text += text

    def flush(self):
        """Nothing is kept back."""

    def isatty(self):
        return True


class Numbered(Console):
    def fileno(self):
        return "no number"


class Refuses(Console):
    def write(self, text):
        raise ValueError("no such text")


@pytest.mark.parametrize("console", [Console(), Numbered()], ids=["no descriptor", "no number"])
def test_a_line_is_drawn_on_a_console_that_is_no_file(console, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    assert is_terminal(console)
    line = LiveLine(TolerantStream(console))
    line.draw("epoch 1/3", 4, 10, ["loss 0.5"])
    line.close()
    assert "epoch 1/3" in console.text


def test_what_a_console_without_a_state_raises_is_raised():
    with pytest.raises(ValueError, match="no such text"):
        TolerantStream(Refuses()).write("text")


@pytest.fixture
def line(monkeypatch):
    """Returns a line on a terminal of 60 columns, and the terminal."""
    _resize(monkeypatch, 61, 24)  # tqdm leaves the last column free
    terminal = _Terminal()
    made = LiveLine(TolerantStream(terminal))
    yield made, terminal
    made.close()


def test_nothing_is_shown_before_the_first_draw(line):
    live, terminal = line
    live.close()
    assert terminal.getvalue() == ""


@pytest.mark.parametrize(
    ("step", "steps", "shown"), [(5, 10, "epoch |##########          | 5/10"), (7, None, "7 steps")]
)
def test_the_bar_shows_how_many_are_done(line, step, steps, shown):
    live, terminal = line
    live.draw("epoch", step, steps, [])
    assert shown in terminal.screen()[-1]


def test_what_does_not_fit_is_left_out_from_the_end(line):
    live, terminal = line
    live.draw("epoch", 5, 10, ["loss 0.25", "an accuracy of 0.75 and more", "more"])
    (shown,) = terminal.screen()
    assert shown.endswith("5/10, loss 0.25")
    assert len(shown) <= 60
    live.draw("e", 5, 10, ["loss 0.25", "more"])
    assert terminal.screen()[-1].endswith("5/10, loss 0.25, more")


def test_a_message_stays_above_and_the_line_goes_when_it_is_closed(line):
    live, terminal = line
    live.draw("epoch", 5, 10, [])
    live.say("a notice")
    assert terminal.screen()[0] == "a notice"
    assert terminal.screen()[-1].startswith("epoch |")
    live.close()
    live.close()
    assert terminal.screen() == ["a notice"]
