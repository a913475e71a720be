"""Models in service: what is submitted for them waits, is batched and runs on the engine.

One lock guards the bounded queue of each model and the accounts; it is not held while the engine is called.
Results are delivered on the worker thread that ran the last layer. A batch counts as running until all of its
callbacks have returned, so no callback may wait for that: it would wait for itself.
"""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from overlap_train._support.arguments import short_repr
from overlap_train.errors import DeadlineError, QueueFullError, SchedulerClosedError, SchedulingError
from overlap_train.scheduling.accounts import ModelAccount, RunTimes, SchedulerStatistics, ends_s
from overlap_train.scheduling.engine import Engine
from overlap_train.scheduling.graph import LayerGraph, Request, urgency


@dataclass(eq=False)
class Submission:
    """One call of `submit`."""

    model: Model
    inputs: tuple[Any, ...]  # flat arrays with the batch first
    examples: int
    future: Future[Any]
    arrival_s: float  # of `time.monotonic()`, as is the deadline
    priority: int = 0
    deadline_s: float | None = None
    on_late: str = "run"

    @property
    def promised_s(self) -> float:
        """Return the deadline that was promised at admission; infinity without one."""
        return self.deadline_s if self.deadline_s is not None and self.on_late == "reject" else math.inf

    def longest_s(self, now_s: float) -> float:
        """Return the longest time that a batch of nothing else took of late."""
        return self.model.run_times.longest_s(now_s, self.examples)


@dataclass(eq=False)
class Model:
    """A model in service."""

    name: str
    graph: LayerGraph
    flatten: Callable[[Any], tuple[Any, ...]]
    pack: Callable[[tuple[Any, ...]], Any]
    max_pending: int = 64
    max_batch: int = 1
    waiting: list[Submission] = field(default_factory=list)
    account: ModelAccount = field(default_factory=ModelAccount)
    run_times: RunTimes = field(default_factory=RunTimes)
    removed: bool = False

    def book_run(self, batch: Batch, *, beside: bool) -> None:
        """Add what a run took to the model's accounts, alone or next to others."""
        ran_s = batch.spent_s(time.monotonic())
        self.run_times.add(time.monotonic(), sum(s.examples for s in batch.submissions), ran_s, beside=beside)
        if batch.typical_s:
            self.account.cost_errors.append(abs(ran_s / batch.typical_s - 1))


@dataclass(eq=False)
class Batch:
    """Submissions for one model that run together, and what is expected of the run."""

    submissions: list[Submission]
    typical_s: float
    longest_s: float
    request: Request | None = None

    @classmethod
    def of(cls, submissions: list[Submission], now_s: float, *, beside: bool = False) -> Batch:
        """Return a batch that is about to run, alone or next to others."""
        times, count = submissions[0].model.run_times, sum(s.examples for s in submissions)
        return cls(submissions, times.typical_s(now_s, count, beside=beside), times.longest_s(now_s, count))

    @property
    def model(self) -> Model:
        """Return the model that they are for."""
        return self.submissions[0].model

    def spent_s(self, now_s: float) -> float:
        """Return the seconds that its layers have run."""
        if self.request is None:
            return 0.0
        return self.request.ran_s + sum(now_s - began_s for began_s, _ in list(self.request.began.values()))


class Waiting:
    """All submissions that wait, by model, for `lanes` batches that can be computed at the same time."""

    def __init__(self, lanes: int = 1) -> None:
        self.models: dict[str, Model] = {}
        self.running: list[Batch] = []
        self._lanes = lanes
        self._was_beside = False  # whether others ran next to the last run
        self.ending: list[Submission] = []  # taken out, and their futures are about to end

    def __len__(self) -> int:
        return sum(len(model.waiting) for model in self.models.values())

    def next_batch(self) -> list[Submission]:
        """Take out the most urgent submission and those of its model that can run with it.

        They are at most `max_batch` examples of one shape, and at most each lane's part of what waits, so
        that no lane is idle at the end (guided self-scheduling, Polychronopoulos and Kuck 1987). None is
        joined that would make a further promised deadline be missed.
        """
        ranked = self._ranked()
        if not ranked:
            return []
        first = ranked[0]
        model, batch, total = first.model, [first], first.examples
        part = -(-sum(submission.examples for submission in model.waiting) // self._lanes)
        most = min(model.max_batch, part)
        if most > total:
            shapes = _shapes(first)
            late = self._late(ranked, batch)
            for other in ranked[1:]:
                fits = other.model is model and total + other.examples <= most and shapes == _shapes(other)
                if fits and self._late(ranked, [*batch, other]) <= late:
                    batch.append(other)
                    total += other.examples
        model.waiting = [submission for submission in model.waiting if submission not in batch]
        return batch

    def _is_beside(self, others: int) -> bool:
        """Whether what begins now will run next to others, on half of the other lanes or more.

        Where there are none yet, others come as they came to the last run.
        """
        return self._lanes > 1 and (2 * others >= self._lanes if others else self._was_beside)

    def begin(self, submissions: list[Submission], now_s: float) -> Batch:
        """Count submissions as a batch that runs from now on."""
        batch = Batch.of(submissions, now_s, beside=self._is_beside(len(self.running) + len(self)))
        self.running.append(batch)
        batch.model.account.counts["batches"] += 1
        return batch

    def end(self, batch: Batch, error: BaseException | None) -> None:
        """Count a batch as over, and what it took if it has results."""
        self.running.remove(batch)
        if error is None and batch.request is not None:
            slots_s = batch.request.ran_s * (self._lanes - 1)
            self._was_beside = 2 * batch.request.beside_s > slots_s > 0.0
            batch.model.book_run(batch, beside=self._was_beside)

    def take_hopeless(self, now_s: float) -> dict[Submission, float]:
        """Take out what is to be dropped, as it would be late even if it began now; with its end then."""
        beside, ends = self._is_beside(len(self.running)), {}
        for model in self.models.values():
            for s in model.waiting:
                if s.on_late == "drop" and s.deadline_s is not None:
                    end_s = now_s + model.run_times.typical_s(now_s, s.examples, beside=beside)
                    if end_s > s.deadline_s:
                        ends[s] = end_s
        for model in self.models.values() if ends else ():
            model.waiting = [submission for submission in model.waiting if submission not in ends]
        self.ending += ends
        return ends

    def take_all(self) -> list[Submission]:
        """Take out all submissions."""
        taken = [submission for model in self.models.values() for submission in model.waiting]
        for model in self.models.values():
            model.waiting = []
        self.ending += taken
        return taken

    def has(self, model: Model | None = None) -> bool:
        """Whether submissions, perhaps for one model, have not ended."""
        waiting = (submission for each in self.models.values() for submission in each.waiting)
        running = (submission for batch in self.running for submission in batch.submissions)
        left = itertools.chain(waiting, running, self.ending)
        return any(model is None or submission.model is model for submission in left)

    def refused_until_s(self, submission: Submission, now_s: float) -> float | None:
        """Return None if a promise to a new submission can be kept, or else when it would be done."""
        others, ends = self._ranked(), self._ends(now_s, self._ranked(submission))
        if ends[submission] > submission.promised_s:
            return ends[submission]
        # One that is late anyway is no reason to refuse another.
        if _broken(ends) > _broken(self._ends(now_s, others)):
            return self._ends(now_s, [*others, submission])[submission]
        return None

    def _late(self, ranked: list[Submission], batch: list[Submission]) -> int:
        """Return how many promises would be broken if a batch of those that wait began now."""
        if all(s.promised_s == math.inf for s in ranked):
            return 0
        now_s = time.monotonic()
        rest = [submission for submission in ranked if submission not in batch]
        return _broken(self._ends(now_s, rest, Batch.of(batch, now_s)))

    def _ends(self, now_s: float, ranked: Iterable[Submission], *more: Batch) -> dict[Submission, float]:
        """Predict when each submission is done: first those that have begun to run, and each by itself."""
        batches = sorted([*self.running, *more], key=lambda batch: batch.spent_s(now_s) == 0.0)
        batches += [Batch([s], 0.0, s.longest_s(now_s)) for s in ranked]
        left_s = (max(batch.longest_s - batch.spent_s(now_s), 0.0) for batch in batches)
        ends = ends_s(now_s, left_s, self._lanes)
        return {s: end for batch, end in zip(batches, ends, strict=True) for s in batch.submissions}

    def _ranked(self, *more: Submission) -> list[Submission]:
        """Return what waits, and more, the most urgent first."""
        waiting = [*(s for model in self.models.values() for s in model.waiting), *more]
        return sorted(waiting, key=lambda s: urgency(s, remaining_s=0.0))


def _broken(ends: dict[Submission, float]) -> int:
    return sum(end_s > submission.promised_s for submission, end_s in ends.items())


def join_inputs(batch: list[Submission]) -> tuple[Any, ...]:
    """The inputs of several submissions as those of one."""
    if len(batch) == 1:
        return batch[0].inputs
    columns = zip(*(s.inputs for s in batch), strict=True)
    return tuple(map(np.concatenate, columns))


def split_outputs(batch: list[Submission], outputs: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """Each submission's rows of the outputs, as views."""
    if len(batch) == 1:
        return [outputs]
    ends = np.cumsum([submission.examples for submission in batch])
    return [
        tuple(output[end - submission.examples : end] for output in outputs)
        for submission, end in zip(batch, ends, strict=True)
    ]


def _shapes(submission: Submission) -> list[Any]:
    """Return the shape beyond the batch of each input."""
    return [array.shape[1:] for array in submission.inputs]


_log = logging.getLogger(__name__)


class Service:
    """Answers submissions for the models in service. Any thread may call any method."""

    def __init__(
        self,
        engine: Engine,
        tensors: Callable[[tuple[Any, ...]], tuple[Any, ...]],
        *,
        max_active: int | None = None,
    ) -> None:
        self._engine = engine
        self._tensors = tensors
        devices = engine.platform.devices
        self._max_active = max_active or 2 * sum(device.slots for device in devices)
        # So many batches run side by side: on the GPUs, or where there is none on the cores.
        lanes = sum(device.slots for device in engine.platform.of_kind("gpu") or devices)
        self._changed = threading.Condition()
        self._waiting = Waiting(lanes)
        self._numbers = itertools.count()
        self._here = threading.local()  # has `calling` while a thread calls the callbacks of a future
        self.closed = False

    def require_free(self, name: str) -> None:
        """Raise ValueError if a model of that name is in service, SchedulerClosedError after `close`."""
        with self._changed:
            self._check_open()
            if name in self._waiting.models:
                raise ValueError(
                    f"a model named {name!r} is in service; remove it first or choose another name"
                )

    def add(self, model: Model) -> None:
        """Take a model into service."""
        with self._changed:
            self.require_free(model.name)
            self._waiting.models[model.name] = model

    def model(self, name: str) -> Model:
        """Return a model in service."""
        with self._changed:
            self._check_open()
            if not isinstance(name, str) or name not in self._waiting.models:
                names = sorted(self._waiting.models)
                raise KeyError(f"no model is named {short_repr(name)}; in service are {names}")
            return self._waiting.models[name]

    def remove(self, model: Model) -> None:
        """Take a model out of service and wait until nothing of it runs; see `MultiModelScheduler`."""
        self._require_waitable("remove")
        with self._changed:
            model.removed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._waiting.has(model))
            if self._waiting.models.get(model.name) is model:  # and not one that came after it
                del self._waiting.models[model.name]
            self._changed.notify_all()

    def submit(self, submission: Submission, timeout_s: float | None) -> None:
        """Let a submission wait for its turn, as soon as its model's queue has room."""
        model = submission.model
        submission.future.set_running_or_notify_cancel()
        if self._is_calling():
            timeout_s = 0.0
        with self._changed:
            self._require_in_time(submission)
            room = self._changed.wait_for(
                lambda: self.closed or model.removed or len(model.waiting) < model.max_pending, timeout_s
            )
            self._check_open()
            if model.removed:
                raise SchedulerClosedError(f"model {model.name!r} was removed")
            if not room:
                model.account.counts["rejected"] += 1
                raise QueueFullError(
                    f"{model.max_pending} requests for {model.name!r} are waiting and none began within "
                    f"{timeout_s} s; submit less, wait longer, or raise max_pending"
                )
            self._require_in_time(submission)
            model.account.counts["submitted"] += 1
            model.waiting.append(submission)
        self._begin_what_can()

    def statistics(self) -> SchedulerStatistics:
        """Return counts, latencies, missed deadlines and the use of devices so far."""
        devices = self._engine.statistics()
        with self._changed:
            models = {name: model.account.statistics() for name, model in self._waiting.models.items()}
            return SchedulerStatistics(models, devices, len(self._waiting), len(self._waiting.running))

    def drain(self) -> None:
        """Wait until everything submitted has ended; see `MultiModelScheduler`."""
        self._require_waitable("drain")
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting.has())

    def close(self) -> None:
        """Fail what is unfinished with SchedulerClosedError and close the engine. May be called again."""
        with self._changed:
            self.closed = True
            left = self._waiting.take_all()
            self._changed.notify_all()
        for submission in left:
            self._drop(submission, SchedulerClosedError("the scheduler was closed"))
        self._engine.close()

    def _require_in_time(self, submission: Submission) -> None:
        """Refuse a submission that cannot be done by its deadline, or only by breaking another promise."""
        if submission.promised_s == math.inf:
            return
        end_s = self._waiting.refused_until_s(submission, time.monotonic())
        if end_s is not None:
            submission.model.account.counts["refused"] += 1
            raise _late(submission, end_s)

    def _check_open(self) -> None:
        if self.closed:
            raise SchedulerClosedError("the scheduler is closed")

    def _is_calling(self) -> bool:
        return getattr(self._here, "calling", False)

    def _require_waitable(self, method: str) -> None:
        if self._is_calling():
            raise SchedulingError(
                f"{method} was called in a callback of a future, which is waited for until it returns; call "
                "it from another thread"
            )

    def _begin_what_can(self) -> None:
        while True:
            with self._changed:
                now_s, batch = time.monotonic(), None
                hopeless = self._waiting.take_hopeless(now_s)
                if len(self._waiting.running) < self._max_active and (taken := self._waiting.next_batch()):
                    batch = self._waiting.begin(taken, now_s)
                self._changed.notify_all()
            for submission, end_s in hopeless.items():
                self._drop(submission, _late(submission, end_s))
            if batch is None:
                return
            self._begin(batch)

    def _begin(self, batch: Batch) -> None:
        def on_done(request: Request, outputs: Any, error: BaseException | None) -> None:
            self._settle_all(batch, outputs, error)
            self._begin_what_can()

        submissions = batch.submissions
        try:
            batch.request = Request(
                next(self._numbers),
                batch.model.graph,
                self._tensors(join_inputs(submissions)),
                min(s.arrival_s for s in submissions),
                max(s.priority for s in submissions),
                min((s.deadline_s for s in submissions if s.deadline_s is not None), default=None),
                float(sum(s.examples for s in submissions)),
                on_done,
            )
            self._engine.start(batch.request)
        except BaseException as error:
            self._settle_all(batch, None, error)

    def _settle_all(self, batch: Batch, outputs: Any, error: BaseException | None) -> None:
        rows: list[Any] = [None] * len(batch.submissions)
        if error is None:
            try:
                arrays = tuple(output.numpy() for output in outputs)
                rows = [batch.model.pack(part) for part in split_outputs(batch.submissions, arrays)]
            except BaseException as raised:
                error = raised
        for submission, row in zip(batch.submissions, rows, strict=True):
            self._settle(submission, row, error)
        with self._changed:
            self._waiting.end(batch, error)

    def _drop(self, submission: Submission, error: BaseException) -> None:
        """End a submission that has been taken out of those that wait."""
        self._settle(submission, None, error)
        with self._changed:
            self._waiting.ending.remove(submission)
            self._changed.notify_all()

    def _settle(self, submission: Submission, result: Any, error: BaseException | None) -> None:
        """End a submission. A worker outlives what its callbacks raise; the future logs an `Exception`."""
        with self._changed:
            submission.model.account.book(
                arrival_s=submission.arrival_s,
                end_s=time.monotonic(),
                deadline_s=submission.deadline_s,
                error=error,
            )
        was_calling, self._here.calling = self._is_calling(), True
        try:
            if error is None:
                submission.future.set_result(result)
            else:
                submission.future.set_exception(error)
        except BaseException:
            _log.exception("a callback of a future failed")
        finally:
            self._here.calling = was_calling


def _late(submission: Submission, end_s: float) -> DeadlineError:
    """Return the error for a submission that would be done at `end_s`."""
    predicted_s, allowed_s = (
        moment_s - submission.arrival_s for moment_s in (end_s, submission.deadline_s or 0.0)
    )
    return DeadlineError(
        f"a request for {submission.model.name!r} would be done after {predicted_s:.3g} s, and "
        f"{allowed_s:.3g} s are allowed; submit less, allow more time, or pass on_late='run'",
        predicted_s=predicted_s,
    )
