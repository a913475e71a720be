"""How far a fit has come: the lines of a log file, the one line of a terminal, streams that break."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import threading

import keras
import pytest
from tqdm import tqdm

from overlap_train.monitoring.progress import ProgressReporter
from overlap_train.monitoring.terminal import LiveLine, TolerantStream
from tests.support.terminal import screen

_LOSS = {"loss": 0.25}
_VAL_LOSS = {"val_loss": 0.125}


class _Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return -1

    def screen(self) -> list[str]:
        """Returns the lines as a terminal shows them."""
        return screen(self.getvalue())


def _resize(monkeypatch, columns: int, lines: int) -> None:
    monkeypatch.setattr(os, "get_terminal_size", lambda fd=None: os.terminal_size((columns, lines)))


@pytest.fixture(autouse=True)
def _terminal_of_100_columns(monkeypatch):
    _resize(monkeypatch, 101, 25)  # tqdm leaves the last column free
    monkeypatch.setenv("TERM", "xterm")


@pytest.fixture
def make():
    """Makes (reporter, stream, clock) of a fit of three epochs of ten steps; closes the reporters."""
    with contextlib.ExitStack() as opened:

        def made(stream=None, **options):
            clock, stream = _Clock(), io.StringIO() if stream is None else stream
            reporter = ProgressReporter(3, 10, stream=stream, clock=clock, **options)
            return opened.enter_context(reporter), stream, clock

        yield made


def _lines(stream) -> list[str]:
    return stream.getvalue().splitlines()


def _fit(reporter, epochs=2):
    """Two epochs whose validations arrive one epoch late."""
    for epoch in range(epochs):
        reporter.epoch_begin(epoch)
        reporter.steps_done(epoch, 10, lambda: _LOSS)
        if epoch:
            reporter.epoch_delivered(epoch - 1, _VAL_LOSS)
        reporter.epoch_trained(epoch, _LOSS, 0.5)
        reporter.validation_pending([(epoch, 0, 7)])
    reporter.epoch_delivered(epochs - 1, _VAL_LOSS)


def test_log_file_has_a_line_for_each_epoch_and_no_carriage_return(make):
    reporter, stream, _ = make()
    _fit(reporter)
    assert "\r" not in stream.getvalue()
    assert _lines(stream) == [
        f"Epoch {i}/3 - 10/10 - 0s - 50ms/step - loss: 0.2500 - val_loss: 0.1250" for i in (1, 2)
    ]


def test_verbose_2_gives_two_lines_for_each_epoch_in_order_like_keras(make, capsys):
    reporter, stream, _ = make(_Terminal(), verbose=2)
    _fit(reporter)
    assert "\r" not in stream.getvalue()
    line = "10/10 - 0s - 50ms/step - loss: 0.2500 - val_loss: 0.1250"
    assert _lines(stream) == ["Epoch 1/3", line, "Epoch 2/3", line]
    logger = keras.callbacks.ProgbarLogger()
    logger.set_params({"verbose": 2, "epochs": 3, "steps": 10})
    logger.on_epoch_begin(0)
    logger.on_train_batch_end(9, _LOSS)
    logger.on_epoch_end(0, {**_LOSS, **_VAL_LOSS})
    keras_s = [re.sub(r"\d+(m|u)?s\b", "_", text) for text in capsys.readouterr().out.splitlines()]
    assert [re.sub(r"\d+(m|u)?s\b", "_", text) for text in _lines(stream)[:2]] == keras_s


def test_silence_in_a_log_file_is_broken_at_most_every_30_s(make):
    reporter, stream, clock = make()
    reporter.epoch_begin(0)
    reporter.validation_pending([(0, 2, 7), (1, 0, 7)])
    for clock.now_s in (10, 29, 31, 45, 60, 62):
        reporter.steps_done(0, 5, lambda: _LOSS)
    assert _lines(stream) == [
        "Epoch 1/3 - 5/10 - 31s 6s/step - validating 1: 2/7, 2: 0/7 - loss: 0.2500",
        "Epoch 1/3 - 5/10 - 01:02 12s/step - validating 1: 2/7, 2: 0/7 - loss: 0.2500",
    ]
    reporter.epoch_trained(0, {}, 0.0)
    clock.now_s += 31
    reporter.validation_pending([(0, 6, 7)])
    assert _lines(stream)[-1] == "waiting - validating 1: 6/7", (
        "waiting for the last validation shows life too"
    )


def test_what_is_traced_or_compiled_is_shown_at_once_on_a_terminal_and_if_it_took_long_in_a_log_file(make):
    reporter, stream, clock = make(_Terminal())
    reporter.preparing("tracing the training step")
    assert stream.screen() == ["tracing the training step"]
    reporter.epoch_begin(0)
    reporter.preparing("compiling the training step")
    assert stream.screen() == [f"Epoch 1/3 0/10 {'─' * 20} compiling the training step"]
    clock.now_s = 20
    reporter.steps_done(0, 1, lambda: _LOSS)
    assert stream.screen() == [f"Epoch 1/3 1/10 {'━' * 2}{'─' * 18} loss: 0.2500"]
    clock.now_s = 22
    reporter.steps_done(0, 2, dict)
    assert stream.screen() == [f"Epoch 1/3 2/10 {'━' * 4}{'─' * 16} 16s 2s/step"], "without the compilation"

    reporter, stream, clock = make()
    for what, clock.now_s in (("tracing the training step", 29), ("tracing the validation", 60)):
        reporter.preparing(what)
    clock.now_s += 43
    reporter.epoch_begin(0)
    assert _lines(stream) == ["tracing the training step took 31 s", "tracing the validation took 43 s"]


def test_metrics_are_computed_only_to_be_shown_and_the_length_is_learned():
    calls, clock, stream = [], _Clock(), io.StringIO()
    with ProgressReporter(2, None, stream=stream, clock=clock) as reporter:
        for step in range(4):
            reporter.steps_done(0, step, lambda: calls.append(1) or _LOSS)
        assert calls == []
        clock.now_s = 30
        reporter.steps_done(0, 4, lambda: calls.append(1) or _LOSS)
        assert calls == [1]
        reporter.epoch_trained(0, {}, 1.0)
        reporter.epoch_delivered(0, {})
        reporter.epoch_begin(1)
        clock.now_s = 60
        reporter.steps_done(1, 2, dict)
    assert "- 4/Unknown - 8s/step" in _lines(stream)[0]
    assert "- 2/4 - 30s 15s/step" in _lines(stream)[-1]


def test_terminal_shows_what_is_left_and_the_pending_validation_next_to_the_bar(make):
    reporter, stream, clock = make(_Terminal())
    reporter.epoch_begin(1)
    reporter.validation_pending([(0, 5, 7)])
    clock.now_s = 2
    reporter.steps_done(1, 4, lambda: _LOSS)
    assert stream.screen() == [
        f"Epoch 2/3 4/10 {'━' * 8}{'─' * 12} 3s 500ms/step - validating 1: 5/7 - loss: 0.2500"
    ]


def test_finished_epochs_leave_keras_s_lines_on_a_terminal(make):
    reporter, stream, _ = make(_Terminal())
    before = set(threading.enumerate())
    _fit(reporter)
    assert set(threading.enumerate()) == before
    reporter.close()
    reporter.close()
    line = f"10/10 {'━' * 20} 0s 50ms/step - loss: 0.2500 - val_loss: 0.1250"
    assert stream.screen() == ["Epoch 1/3", line, "Epoch 2/3", line]


def test_epoch_thrown_away_by_a_rollback_leaves_no_line_and_close_writes_what_was_held_back(make):
    reporter, stream, _ = make(verbose=2)
    with reporter:
        for epoch in (0, 1, 2):
            reporter.epoch_begin(epoch)
            reporter.epoch_trained(epoch, {"loss": float(epoch)}, 1.0)
        assert stream.getvalue() == ""
        reporter.epoch_delivered(0, _VAL_LOSS)
        reporter.epoch_begin(1)
        reporter.epoch_trained(1, {"loss": 7.0}, 1.0)
    assert [line.split("loss: ")[1][:6] for line in _lines(stream)[1::2]] == ["0.0000", "7.0000"]


def _closed_file() -> io.StringIO:
    stream = io.StringIO()
    stream.close()
    stream.isatty = lambda: False
    return stream


@pytest.mark.parametrize("make_stream", [lambda: Breaks(0), _closed_file, lambda: None])
def test_a_stream_that_is_broken_or_missing_does_not_end_the_training(make_stream, monkeypatch):
    monkeypatch.setattr(sys, "stdout", make_stream())
    with ProgressReporter(3, 10) as reporter:
        _fit(reporter)
        reporter.message("lost")
    assert reporter.messages == ["lost"]


def test_bar_of_the_caller_on_the_same_terminal_stays_whole(make):
    stream = _Terminal()
    with tqdm(total=4, desc="trials", file=stream, ascii=True, bar_format="{desc} {n}/4") as trials:
        type(trials).monitor_interval = 0
        reporter, _, _ = make(stream)
        reporter.epoch_begin(0)
        reporter.message("a notice\n  - its remedy")
        shown = stream.screen()
    assert shown == ["a notice", "  - its remedy", "trials 0/4", f"Epoch 1/3 0/10 {'─' * 20}"]


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


def test_a_missing_character_breaks_nothing_and_the_stream_passes_for_that_below():
    below = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    stream = TolerantStream(below)
    for text in ("größer, ", "smaller"):
        stream.write(text)
    stream.flush()
    assert below.buffer.getvalue() == rb"gr\xf6\xdfer, smaller"
    assert stream == below
    assert stream == TolerantStream(below)
    assert hash(stream) == hash(below)
    assert stream != TolerantStream(io.StringIO())
    assert stream.closed is False


@pytest.fixture
def line(monkeypatch):
    """Returns a line on a terminal of 60 columns, and the terminal."""
    _resize(monkeypatch, 61, 24)  # tqdm leaves the last column free
    terminal = _Terminal()
    made = LiveLine(TolerantStream(terminal))
    yield made, terminal
    made.close()


def test_what_does_not_fit_is_left_out_from_the_end(line):
    live, terminal = line
    live.draw("epoch", 5, 10, ["loss {0.25}", "an accuracy of 0.75 and more", "more"])
    (shown,) = terminal.screen()
    assert shown.endswith("─ loss {0.25}")
    assert len(shown) <= 60
    live.draw("e", 5, 10, ["loss 0.25", "more"])
    assert terminal.screen()[-1].endswith("─ loss 0.25 - more")
