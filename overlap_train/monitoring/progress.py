"""Tells the person at the terminal, or the reader of the log file, how far a fit has come.

Everything here belongs to the training thread: no lock, no thread, and tqdm's own monitor thread stays off.
People count epochs from 1, as Keras prints them; the arguments count from 0, as everywhere else.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TextIO

from tqdm import tqdm

from overlap_train._support.arguments import (
    require_callable,
    require_count,
    require_each,
    require_flag,
    require_mapping,
    require_real,
    require_text,
    short_repr,
)
from overlap_train._support.closing import Closing
from overlap_train._support.fit_arguments import require_verbosity
from overlap_train._support.printing import is_watched, printable
from overlap_train.monitoring.table import format_metric

__all__ = [
    "LiveLine",
    "PendingValidation",
    "ProgressReporter",
    "RunningMetrics",
    "TolerantStream",
    "is_terminal",
]


RunningMetrics = Mapping[str, Any] | Callable[[], Mapping[str, Any]]
"""Metrics, or a function that computes them, called only when they are about to be shown."""

PendingValidation = tuple[int, int, int]
"""(epoch, shards done, shards)."""

_PENDING = "triples of an epoch, the shards done and the shards"
_REDRAW_S = 0.1


class ProgressReporter(Closing):
    """Show the training and the pending validations, in a form that suits the stream.

    - `verbose=1` on a terminal: one live line; each epoch leaves one line when its validation has arrived.
    - `verbose=1` elsewhere: plain lines. One for each trained epoch, one for each validation, and one if
      nothing was printed for `heartbeat_s`.
    - `verbose=2`: one plain line for each epoch, when its validation has arrived.
    - `verbose=0`: nothing.

    All methods belong to the training thread and cost microseconds where there is nothing to show. They
    raise TypeError for a value of the wrong type and ValueError for one out of range. A stream that breaks
    (a closed pipe) silences the reporter; it does not end the training.

    Attributes:
        messages: the texts passed to `message`, in order, whether shown or not.
    """

    def __init__(
        self,
        total_epochs: int,
        steps_per_epoch: int | None = None,
        *,
        stream: TextIO | None = None,
        verbose: Literal["auto", 0, 1, 2] = "auto",
        clock: Callable[[], float] = time.monotonic,
        heartbeat_s: float = 30.0,
    ) -> None:
        """Make a reporter; it prints nothing yet.

        Args:
            total_epochs: the epoch to stop at, as `epochs` of `fit`.
            steps_per_epoch: steps of an epoch; None learns it from the first epoch.
            stream: the text stream to write to; None means `sys.stdout`, as in Keras.
            verbose: as in `fit`; "auto" means 1.
            clock: returns the time in seconds.
            heartbeat_s: the longest time without a line in a log file, in seconds.

        Raises:
            TypeError: an argument has the wrong type.
            ValueError: `verbose` is not one of the four values, or a number is negative.
        """
        verbose = require_verbosity(verbose)
        require_callable("clock", clock)
        if stream is not None and not hasattr(stream, "write"):
            raise TypeError(f"stream must be a text stream or None; got {short_repr(stream)}")
        total_epochs = require_count("total_epochs", total_epochs, minimum=0)
        if steps_per_epoch is not None:
            steps_per_epoch = require_count("steps_per_epoch", steps_per_epoch, minimum=0)
        heartbeat_s = require_real("heartbeat_s", heartbeat_s, minimum=0, infinite=True)
        self.messages: list[str] = []
        self._stream = TolerantStream(sys.stdout if stream is None else stream)
        self._total_epochs = total_epochs
        self._steps_per_epoch = steps_per_epoch
        self._clock = clock
        self._silent = verbose == 0
        on_terminal = verbose in ("auto", 1) and is_terminal(self._stream)
        self._live = LiveLine(self._stream) if on_terminal else None
        self._one_line_each = verbose == 2 or on_terminal
        self._heartbeat_s = float("inf") if self._one_line_each else heartbeat_s
        self._lines: dict[int, _DelayedLine] = {}  # by epoch, in order
        self._epoch: int | None = None
        self._step = 0
        self._metrics: RunningMetrics = {}
        self._pending: tuple[PendingValidation, ...] = ()
        self._began_s = self._said_s = clock()
        self._drawn_s = float("-inf")

    def epoch_begin(self, epoch: int) -> None:
        """Show that an epoch begins, or begins again after a rollback."""
        epoch = require_count("epoch", epoch, minimum=0)
        self._lines = {earlier: line for earlier, line in self._lines.items() if earlier < epoch}
        self._epoch, self._step, self._metrics = epoch, 0, {}
        self._began_s = self._clock()
        self._show(now=True)

    def steps_done(self, epoch: int, step: int, metrics: RunningMetrics) -> None:
        """Show that `step` steps of the epoch are done; `metrics` are their running values."""
        self._epoch = require_count("epoch", epoch, minimum=0)
        self._step = require_count("step", step, minimum=0)
        self._metrics = metrics if callable(metrics) else _checked_metrics(metrics)
        self._show()

    def validation_pending(self, pending: Iterable[PendingValidation]) -> None:
        """Show which validations have not been delivered yet. May be called as often as convenient."""
        before = self._pending
        self._pending = require_each("pending", pending, _checked_pending, expected=_PENDING)
        self._show(now=self._pending != before)

    def epoch_trained(
        self, epoch: int, metrics: Mapping[str, Any], seconds: float, *, validation_follows: bool = False
    ) -> None:
        """Show that the steps of an epoch are done.

        Args:
            epoch: the epoch, counted from 0.
            metrics: its training metrics.
            seconds: the time that its training took.
            validation_follows: whether its validation is still to be delivered; if each epoch has one line,
                the line waits for it.
        """
        epoch, metrics = require_count("epoch", epoch, minimum=0), _checked_metrics(metrics)
        seconds = require_real("seconds", seconds, minimum=0)
        validation_follows = require_flag("validation_follows", validation_follows)
        steps, self._epoch = self._step, None
        self._steps_per_epoch = self._steps_per_epoch or steps or None
        text = f"{self._name(epoch)}: {steps} steps in {seconds:.1f} s{_pace(seconds, steps)}"
        text = ", ".join([text, *_metric_texts(metrics)])
        if self._one_line_each:
            self._lines[epoch] = _DelayedLine(text, validation_follows)
            self._release_lines()
        else:
            self._say(text)

    def epoch_validated(self, epoch: int, metrics: Mapping[str, Any]) -> None:
        """Show that an epoch's validation was delivered; earlier ones are then delivered or left out, too."""
        epoch, metrics = require_count("epoch", epoch, minimum=0), _checked_metrics(metrics)
        if line := self._lines.get(epoch):
            line.text = ", ".join([line.text, *_metric_texts(metrics)])
        else:
            self._say(", ".join([f"{self._name(epoch)}: validated", *_metric_texts(metrics)]))
        for other, line in self._lines.items():
            line.waits = line.waits and other > epoch
        self._release_lines()

    def message(self, text: str) -> None:
        """Print a text on its own line, such as the plan, a rollback or a notice."""
        self.messages.append(" ".join(require_text("text", text, empty=True).split()))
        self._say(self.messages[-1])

    def close(self) -> None:
        """Print the lines held back and remove the live line; does nothing the second time."""
        for line in self._lines.values():
            line.waits = False
        self._release_lines()
        if self._live is not None:
            self._live.close()
            self._live = None

    def _name(self, epoch: int) -> str:
        total = str(self._total_epochs)
        return f"epoch {epoch + 1:>{len(total)}}/{total}"

    def _show(self, *, now: bool = False) -> None:
        """Redraw the live line, or show that the run is alive, where either is due."""
        if self._silent:
            return
        now_s = self._clock()
        if self._live is not None and (now or now_s - self._drawn_s >= _REDRAW_S):
            self._drawn_s = now_s
            self._live.draw(self._head(), self._step, self._steps_per_epoch, self._tail())
        elif now_s - self._said_s >= self._heartbeat_s:
            steps = f"{self._step}/{self._steps_per_epoch or '?'} steps"
            parts = [f"{self._head()}: {steps}", *self._tail()] if self._epoch is not None else self._tail()
            self._say(", ".join(parts or ["waiting"]))

    def _head(self) -> str:
        return self._name(self._epoch) if self._epoch is not None else "waiting"

    def _tail(self) -> list[str]:
        """Return the texts next to the bar, the most important first."""
        parts = []
        if self._pending:
            shards = ", ".join(f"{epoch + 1}: {done}/{total}" for epoch, done, total in self._pending)
            parts.append(f"validating {shards} shards")
        if self._epoch is not None and self._step:
            elapsed_s = self._clock() - self._began_s
            parts[:0] = [f"{self._step / elapsed_s:.1f} steps/s"] if elapsed_s > 0 else []
            parts += _metric_texts(self._metrics() if callable(self._metrics) else self._metrics)
        return parts

    def _release_lines(self) -> None:
        """Write the epochs' lines in order, up to the first that still waits."""
        for epoch, line in list(self._lines.items()):
            if line.waits:
                break
            del self._lines[epoch]
            self._say(line.text)

    def _say(self, text: str) -> None:
        if self._silent:
            return
        self._said_s = self._clock()
        if self._live is not None:
            self._live.say(text)
        else:
            self._stream.write(text + "\n")
        self._stream.flush()


@dataclass
class _DelayedLine:
    """The line of an epoch that is trained, and whether it still waits for a validation."""

    text: str
    waits: bool


def _checked_metrics(metrics: Any) -> Mapping[str, Any]:
    return require_mapping("metrics", metrics, expected="a mapping of metrics by name")


def _checked_pending(name: str, item: Any) -> PendingValidation:
    if not (isinstance(item, tuple) and len(item) == 3):
        raise TypeError(f"{name} must be {_PENDING}; got {short_repr(item)} in it")
    epoch, done, total = (require_count(name, number, minimum=0) for number in item)
    return epoch, done, total


def _metric_texts(metrics: Mapping[str, Any]) -> list[str]:
    return [f"{name} {format_metric(value)}" for name, value in metrics.items()]


def _pace(seconds: float, steps: int) -> str:
    """Say how long one step took, in the unit that gives a readable number."""
    if not steps:
        return ""
    each_s = seconds / steps
    factor, unit = (1, "s") if each_s >= 1 else (1e3, "ms") if each_s >= 1e-3 else (1e6, "us")
    return f" ({each_s * factor:.3g} {unit}/step)"


_BAR_WIDTH = 20
_SEPARATOR = ", "


class TolerantStream:
    """Passes text on until the stream breaks or is closed, and is silent from then on.

    A lost terminal or a closed pipe must not end hours of training. Nor must a character that the stream's
    encoding lacks: it is written as a number.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream: Any = stream
        self._broken = stream is None  # as is standard output if the parent process has closed it

    def write(self, text: str) -> int:
        """Write text, unless the stream has broken; returns its length."""
        self._attempt(self._write, text)
        return len(text)

    def flush(self) -> None:
        """Flush the stream, unless it has broken."""
        if not self._broken:
            self._attempt(self._stream.flush)

    def isatty(self) -> bool:
        """Whether the stream is a terminal."""
        return is_watched(self._stream)

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
        except UnicodeEncodeError:
            self._stream.write(printable(text, self._stream))

    def _attempt(self, operation: Any, *args: str) -> None:
        if self._broken:
            return
        try:
            operation(*args)
        except OSError:
            self._broken = True
        except ValueError:  # of a closed file; any other stream's is an error
            if not getattr(self._stream, "closed", False):
                raise
            self._broken = True

    def __eq__(self, other: object) -> bool:
        """Equals the stream below: tqdm compares, to find the bars that share a terminal."""
        return self._stream == getattr(other, "_stream", other)

    def __hash__(self) -> int:
        return hash(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def is_terminal(stream: TextIO | TolerantStream) -> bool:
    """Tell whether a line can be drawn again and again on `stream`.

    A pseudo-terminal without a size, as containers and CI make them, is captured and not watched.
    """
    if os.environ.get("TERM") == "dumb" or not stream.isatty():
        return False
    try:
        return os.get_terminal_size(stream.fileno()).lines > 1
    except Exception:  # a console that is no file, such as a notebook's, has no descriptor
        return True


class LiveLine:
    """A tqdm bar with text next to it, cut to the width of the terminal.

    It appears with the first `draw`. All methods belong to one thread.
    """

    def __init__(self, stream: TolerantStream) -> None:
        self._stream = stream
        self._bar: _Bar | None = None

    def draw(self, head: str, step: int, steps: int | None, tail: Sequence[str]) -> None:
        """Draw the line; of `tail`, the most important first, what does not fit is left out."""
        if self._bar is None:
            self._bar = _Bar(file=self._stream, dynamic_ncols=True, leave=False, bar_format="{desc}")
        bar = self._bar
        count = f"{step}/{steps}" if steps else f"{step} steps"
        width = len(head) + 3 + _BAR_WIDTH + 2 + len(count)
        bar.bar_format = f"{{desc}} |{{bar:{_BAR_WIDTH}}}| {count}{{postfix}}"
        bar.total, bar.n = steps, step
        bar.set_description_str(head, refresh=False)
        bar.set_postfix_str(
            _fitting(tail, bar.ncols - width) if bar.ncols else _SEPARATOR.join(tail), refresh=False
        )
        bar.refresh()

    def say(self, text: str) -> None:
        """Write a line that stays above this one, and above other tqdm bars on the terminal."""
        _Bar.write(text, file=self._stream)

    def close(self) -> None:
        """Take the line away for good; does nothing the second time."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


class _Bar(tqdm):  # type: ignore[misc]  # tqdm is not typed
    """A tqdm that leaves nothing behind in the process."""

    monitor_interval = 0  # else tqdm starts a thread that outlives the bar
    _lock = threading.RLock()  # else tqdm makes a lock between processes as well


def _fitting(parts: Sequence[str], room: int) -> str:
    """Join the first parts that fit into `room` characters, the separator before each counted."""
    fitting: list[str] = []
    for part in parts:
        room -= len(_SEPARATOR) + len(part)
        if room < 0:
            break
        fitting.append(part)
    return _SEPARATOR.join(fitting)
