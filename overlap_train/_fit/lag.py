"""How far the training may run ahead of the validation without a visible difference (contracts C3, C4)."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass

import keras

from overlap_train._callbacks.hooks import acts_on_model_only, may_change_training
from overlap_train._data.feed import Feed
from overlap_train._fit.draws import follow_others
from overlap_train._fit.request import FitRequest
from overlap_train._support.reasons import Reason
from overlap_train._training.step import Step
from overlap_train._validation.backlog import Backlog
from overlap_train._validation.suite import ValidationSuite
from overlap_train.errors import OverlapError

# With this number of rollbacks in this number of deliveries, running ahead does not pay any more.
_ROLLBACKS, _DELIVERIES = 3, 5

# What a validation takes of a core that is idle anyway is gained, and the rest is taken from the training,
# with some 4% on top for the caches that they share. With 0.13 to 0.29 of a core idle an epoch took 0.98 to
# 1.07 of the time in step, with 0.6 at most 1.01. Batches in memory whose parts run side by side are hardly
# slowed down: an operation of the validation holds up only one of the parts.
_LEAST_CORES = 0.5

_IN_STEP = "validating in step with the training"


def reasons_to_wait(
    request: FitRequest,
    step: Step,
    suite: ValidationSuite,
    callbacks: Sequence[keras.callbacks.Callback],
    waiting_hook: Callable[[keras.callbacks.Callback], str | None],
) -> Iterator[Reason]:
    """Yields why the training has to wait for each validation, the reasons that are cheap to find first."""
    yield from suite.reasons
    if request.settings.validation.on_change != "rollback":
        return
    yield from _irreversible(request.feed, step)
    for callback in callbacks:
        hook = waiting_hook(callback)
        if hook is not None:
            yield Reason.of("callback-acts", f"{type(callback).__name__}.{hook}")
    yield from _lost_data(request, suite, callbacks)
    if request.streamed or suite.runs_python:  # of arrays only the order of rows is drawn, by nothing else
        yield from follow_others(request, callbacks, step.traced)


def _irreversible(feed: Feed, step: Step) -> Iterator[Reason]:
    """Yields what a training step does that no rollback undoes."""
    if step.traced is None:
        yield Reason.of("model-eager")
    for function, name in ((step.traced, "the training step"), (feed.preparation, "preprocess")):
        for effect in function.effects if function is not None else ():
            yield Reason.of("step-stateful", f"{name} {effect.done}", effect.remedy)


def _lost_data(
    request: FitRequest, suite: ValidationSuite, callbacks: Sequence[keras.callbacks.Callback]
) -> Iterator[Reason]:
    """Yields who may change the training, where its data or the validation's could not be read again."""
    feed, settings = request.feed, request.settings
    changing = [callback for callback in callbacks if may_change_training(callback)]
    if not changing:
        return
    cause = f"{type(changing[0]).__name__} may change the training"
    if not suite.rewindable:
        yield Reason.of("data-once", f"{cause}, and the validation data comes from a generator")
    if feed.rewindable:
        return
    foreign = [callback for callback in changing if not acts_on_model_only(callback)]
    # Several hosts would have to keep the same number of batches.
    keep_bytes = 0 if settings.hosts.count > 1 else settings.validation.keep_bytes
    if feed.runs_python and foreign:
        acting = type(foreign[0]).__name__
        yield Reason.of("data-once", f"{acting} may change what Python makes the training data from")
    elif not feed.keep(keep_bytes):
        yield Reason.of("data-once", f"{cause}, whose batches are not kept")


@dataclass
class LagControl:
    """Ends running ahead during a fit where it does not pay. On the training thread.

    `idle` is None if only rollbacks count, as where the validation has devices of its own.
    """

    _backlog: Backlog
    _say: Callable[[str], None]
    _idle: IdleCores | None
    _: KW_ONLY
    streamed: bool
    required: bool = False

    def __post_init__(self) -> None:
        self._has_warned = False
        self._rolled_back: list[bool] = []

    def wants_alone(self, epoch: int, splits: int) -> bool:
        """Whether to wait for the validation of the epoch that has just been trained.

        That is as long as hardly any core is idle, as in an epoch that fills a cache.
        """
        left = None if self._idle is None or not self._backlog.max_lag else self._idle.left
        if left is None or left >= _LEAST_CORES or (splits > 1 and not self.streamed):
            return False
        if not self._has_warned:
            self._has_warned = True
            reason = Reason.of("overlap-slow", f"the training leaves {left:.2f} of a core idle")
            self._say(f"{_IN_STEP} from epoch {epoch + 1} on until {_LEAST_CORES:g} cores are idle: {reason}")
        return True

    def delivered(self, *, rolled_back: bool) -> None:
        """Takes in whether a delivery rolled the training back."""
        self._rolled_back = [*self._rolled_back, rolled_back][-_DELIVERIES:]
        if self._backlog.max_lag and sum(self._rolled_back) >= _ROLLBACKS:
            cause = f"{_ROLLBACKS} of the last {len(self._rolled_back)} epochs were rolled back"
            reason = Reason.of("overlap-slow", cause, "leave it", "let callbacks change the training less")
            if self.required:
                raise OverlapError([reason])
            self._backlog.max_lag = 0
            self._say(f"{_IN_STEP} from now on: {reason}")


_LEAST_S = 0.01  # shorter calls are added up: the clock of CPU seconds is coarse
_RECENT = 5


class IdleCores:
    """Measures how many of `cores` training calls leave idle while nothing else runs.

    More workers than that slow the training down, and the validation is done no sooner.
    """

    def __init__(self, cores: int) -> None:
        self._cores = cores
        self._busy: deque[float] = deque(maxlen=_RECENT)
        self._wall_s = self._cpu_s = 0.0

    def observe(self, wall_s: float, cpu_s: float) -> None:
        """Takes in a call: how long it took, and the CPU seconds of the whole process meanwhile."""
        self._wall_s += wall_s
        self._cpu_s += cpu_s
        if self._wall_s >= _LEAST_S:
            self._busy.append(self._cpu_s / self._wall_s)
            self._wall_s = self._cpu_s = 0.0

    @property
    def left(self) -> float | None:
        """What the training leaves, in cores, at least 0; None as long as nothing is known."""
        return max(0.0, self._cores - statistics.median(self._busy)) if self._busy else None

    @property
    def count(self) -> int:
        """Idle cores, at least 1; half of all as long as nothing is known."""
        left = self.left
        return max(1, round(self._cores / 2 if left is None else left))
