"""Shows on a terminal, in a notebook or in a log file how far a fit has come, in the form of Keras.

Everything here belongs to the training thread: no lock, no thread, and tqdm's own monitor thread stays off.
People count epochs from 1, as Keras prints them; the arguments count from 0, as everywhere else.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from tqdm import tqdm

from overlap_train._support.fit_arguments import Verbosity
from overlap_train.monitoring.quiet import PendingValidation, QuietProgress
from overlap_train.monitoring.table import format_metric
from overlap_train.monitoring.terminal import (
    BAR_WIDTH,
    SEPARATOR,
    LiveLine,
    TolerantStream,
    bar_of,
    is_terminal,
)

_REDRAW_S = 0.1
_HEARTBEAT_S = 30.0


class ProgressReporter(QuietProgress):
    """Show the training and the pending validations, in a form that suits the stream.

    - `verbose=1` on a terminal or in a notebook: a bar. Each epoch leaves Keras's two lines when its
      validation has arrived.
    - `verbose=1` elsewhere: one line for each epoch, when its validation has arrived, and one where there
      would be none for 30 seconds.
    - `verbose=2`: Keras's two lines without a bar, and details such as the plan.

    All methods belong to the training thread and cost microseconds where there is nothing to show. A stream
    that breaks (a closed pipe) silences the reporter; it does not end the training.

    Attributes:
        messages: the texts passed to `message`, in order, whether shown or not.
    """

    def __init__(
        self,
        total_epochs: int,
        steps_per_epoch: int | None = None,
        *,
        verbose: Verbosity = "auto",
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make a reporter; it prints nothing yet.

        Args:
            total_epochs: the epoch to stop at, as `epochs` of `fit`.
            steps_per_epoch: steps of an epoch; None learns it from the first epoch.
            verbose: as in `fit`, where 0 has a `QuietProgress`; "auto" means 1.
            stream: the text stream to write to; None means `sys.stdout`, as in Keras.
            clock: returns the time in seconds.
        """
        super().__init__()
        self._stream = TolerantStream(sys.stdout if stream is None else stream)
        self._total_epochs = total_epochs
        self._steps_per_epoch = steps_per_epoch
        self._clock = clock
        self._details = verbose == 2
        shows_bar = verbose in ("auto", 1) and (self._stream.in_notebook() or is_terminal(self._stream))
        self._live = LiveLine(self._stream) if shows_bar else None
        self._two_lines = shows_bar or verbose == 2
        self._lines: dict[int, str] = {}  # of trained epochs that are not delivered, in order
        self._epoch: int | None = None
        self._step = self._began_step = 0
        self._metrics: Callable[[], Mapping[str, Any]] = dict
        self._pending: list[PendingValidation] = []
        self._preparing = ""
        self._began_s = self._said_s = self._prepares_s = clock()
        self._drawn_s = float("-inf")

    def preparing(self, what: str) -> None:
        """Show what is being traced or compiled, until there is something else to show."""
        self._prepared()
        self._preparing, self._prepares_s = what, self._clock()
        self._show(now=True)

    def epoch_begin(self, epoch: int) -> None:
        """Show that an epoch begins, or begins again after a rollback."""
        self._prepared()
        self._lines = {earlier: line for earlier, line in self._lines.items() if earlier < epoch}
        self._epoch, self._step, self._metrics = epoch, 0, dict
        self._began_s, self._began_step = self._clock(), 0
        self._show(now=True)

    def steps_done(self, epoch: int, step: int, metrics: Callable[[], Mapping[str, Any]]) -> None:
        """Show that `step` steps of the epoch are done; `metrics` is called only if they are to be shown."""
        if self._preparing:  # what is left is not estimated by the call that compiled
            self._began_s, self._began_step = self._clock(), step
        self._prepared()
        self._epoch, self._step, self._metrics = epoch, step, metrics
        self._show()

    def validation_pending(self, pending: list[PendingValidation]) -> None:
        """Show which validations have not been delivered yet. May be called as often as convenient."""
        before, self._pending = self._pending, pending
        self._show(now=pending != before)

    def epoch_trained(self, epoch: int, metrics: Mapping[str, Any], seconds: float) -> None:
        """Show that the steps of an epoch are done; its line waits for the delivery."""
        steps, self._epoch = self._step, None
        self._steps_per_epoch = self._steps_per_epoch or steps or None
        parts = [f"{steps}/{steps}", f"{seconds:.0f}s", _pace(seconds, steps)]
        if self._live is not None:  # as Keras's bar stays
            parts = [" ".join([parts[0], bar_of(self._stream)[-1] * BAR_WIDTH, *parts[1:]])]
        end = "\n" if self._two_lines else SEPARATOR
        text = self._name(epoch) + end + SEPARATOR.join([*filter(None, parts), *_metric_texts(metrics)])
        self._lines[epoch] = text

    def epoch_delivered(self, epoch: int, metrics: Mapping[str, Any]) -> None:
        """Show an epoch with what its delivery adds; earlier ones are delivered or left out, too."""
        if epoch in self._lines:
            self._lines[epoch] = SEPARATOR.join([self._lines[epoch], *_metric_texts(metrics)])
        elif metrics:
            self._say(SEPARATOR.join([self._name(epoch), "validated", *_metric_texts(metrics)]))
        self._release_lines(epoch)

    def message(self, text: str, *, detail: bool = False) -> None:
        """Print a notice on lines of its own; a detail, such as the plan, with `verbose=2` only."""
        super().message(text)
        if self._details or not detail:
            self._say(text)

    def close(self) -> None:
        """Print the lines held back and remove the bar; does nothing the second time."""
        self._release_lines()
        if self._live is not None:
            self._live.close()
            self._live = None

    def _name(self, epoch: int) -> str:
        return f"Epoch {epoch + 1}/{self._total_epochs}"

    def _prepared(self) -> None:
        """End what was being prepared; in a log file, say so if it took long."""
        seconds = self._clock() - self._prepares_s
        if self._preparing and not self._two_lines and seconds >= _HEARTBEAT_S:
            self._say(f"{self._preparing} took {seconds:.0f} s")
        self._preparing = ""

    def _show(self, *, now: bool = False) -> None:
        """Redraw the bar, or show that the run is alive, where either is due."""
        now_s = self._clock()
        head = self._preparing or "waiting" if self._epoch is None else self._name(self._epoch)
        step = None if self._epoch is None else self._step
        if self._live is not None and (now or now_s - self._drawn_s >= _REDRAW_S):
            self._drawn_s = now_s
            self._live.draw(head, step, self._steps_per_epoch, self._tail())
        elif not self._two_lines and now_s - self._said_s >= _HEARTBEAT_S:
            count = [] if step is None else [f"{step}/{self._steps_per_epoch or 'Unknown'}"]
            self._say(SEPARATOR.join([head, *count, *self._tail()]))

    def _tail(self) -> list[str]:
        """Return the texts next to the bar, the most important first."""
        parts = []
        if self._pending:
            shards = ", ".join(f"{epoch + 1}: {done}/{total}" for epoch, done, total in self._pending)
            parts.append(f"validating {shards}")
        if self._epoch is None:
            return parts
        done, left = self._step - self._began_step, (self._steps_per_epoch or 0) - self._step
        if done > 0:
            seconds = self._clock() - self._began_s
            eta = _duration(seconds / done * left) if left >= 0 else ""
            parts.insert(0, f"{eta} {_pace(seconds, done)}".strip())
        if self._step:
            parts += _metric_texts(self._metrics())
        return [*filter(None, [self._preparing]), *parts]

    def _release_lines(self, last: float = math.inf) -> None:
        """Write the epochs' lines in order, up to that of the last one delivered."""
        for epoch in [epoch for epoch in self._lines if epoch <= last]:
            self._say(self._lines.pop(epoch))

    def _say(self, text: str) -> None:
        self._said_s = self._clock()
        if self._live is not None:
            self._live.say(text)
        else:
            self._stream.write(text + "\n")
        self._stream.flush()


def _metric_texts(metrics: Mapping[str, Any]) -> list[str]:
    return [f"{name}: {format_metric(value)}" for name, value in metrics.items()]


def _pace(seconds: float, steps: int) -> str:
    """Say how long one step took, as Keras does."""
    if not steps:
        return ""
    step_s = seconds / steps
    factor, unit = (1, "s") if step_s >= 1 else (1e3, "ms") if step_s >= 1e-3 else (1e6, "us")
    return f"{step_s * factor:.0f}{unit}/step"


def _duration(seconds: float) -> str:
    """Write how long an epoch will still take, as Keras does up to a minute."""
    text: str = tqdm.format_interval(seconds)
    return text if seconds >= 60 else f"{seconds:.0f}s"
