"""Models in service: what is submitted for them waits, is batched and runs on the engine.

One lock guards the bounded queue of each model and the accounts; it is not held while the engine is called.
Results are delivered on the worker thread that ran the last layer. A batch counts as running until all of its
callbacks have returned, so no callback may wait for that: it would wait for itself.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from overlap_train._support.arguments import short_repr
from overlap_train.errors import QueueFullError, SchedulerClosedError, SchedulingError
from overlap_train.scheduling.accounts import ModelAccount, SchedulerStatistics
from overlap_train.scheduling.engine import Engine
from overlap_train.scheduling.graph import LayerGraph, Platform, Request, urgency

__all__ = ["Model", "Service", "Submission", "Waiting"]


@dataclass(eq=False)
class Submission:
    """One call of `submit`."""

    model: Model
    inputs: tuple[Any, ...]  # flat arrays with the batch first; None for one that is left out
    examples: int
    future: Future[Any]
    arrival_s: float  # of `time.monotonic()`, as is the deadline
    priority: int = 0
    deadline_s: float | None = None


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
    running: int = 0
    removed: bool = False

    def take_waiting(self) -> list[Submission]:
        """Take out everything that waits."""
        submissions, self.waiting = self.waiting, []
        return submissions


class Waiting:
    """All submissions that wait, by model, for `lanes` batches that can be computed at the same time."""

    def __init__(self, aging_s: float, lanes: int = 1) -> None:
        self.models: dict[str, Model] = {}
        self._aging_s = aging_s
        self._lanes = lanes

    def __len__(self) -> int:
        return sum(len(model.waiting) for model in self.models.values())

    def next_batch(self) -> list[Submission]:
        """Take out the most urgent submission and those of its model that can run with it.

        They are joined in order of urgency while their shapes agree beyond the batch and their
        examples are together at most `max_batch`, and at most each lane's part of what waits, so that
        no lane is left without work at the end (guided self-scheduling, Polychronopoulos and Kuck
        1987). Empty if nothing waits.
        """
        waiting = [model for model in self.models.values() if model.waiting]
        if not waiting:
            return []
        first = min((s for model in waiting for s in model.waiting), key=self._rank)
        model, batch, total = first.model, [first], first.examples
        part = -(-sum(submission.examples for submission in model.waiting) // self._lanes)
        most = min(model.max_batch, part)
        if most > total:
            shapes = _shapes(first)
            for other in sorted(model.waiting, key=self._rank):
                fits = total + other.examples <= most and shapes == _shapes(other)
                if other is not first and fits:
                    batch.append(other)
                    total += other.examples
        model.waiting = [submission for submission in model.waiting if submission not in batch]
        return batch

    def _rank(self, submission: Submission) -> float:
        return urgency(submission, remaining_s=0.0, aging_s=self._aging_s)


def join_inputs(batch: list[Submission]) -> tuple[Any, ...]:
    """The inputs of several submissions as those of one."""
    if len(batch) == 1:
        return batch[0].inputs
    columns = zip(*(s.inputs for s in batch), strict=True)
    return tuple(None if column[0] is None else np.concatenate(column) for column in columns)


def split_outputs(batch: list[Submission], outputs: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """Each submission's rows of the outputs, as views."""
    if len(batch) == 1:
        return [outputs]
    ends = np.cumsum([submission.examples for submission in batch])
    return [
        tuple(output[end - submission.examples : end] for output in outputs)
        for submission, end in zip(batch, ends, strict=True)
    ]


def _shapes(submission: Submission) -> list[tuple[Any, Any] | None]:
    """Return the shape beyond the batch and the dtype of each input, None for one that is left out."""
    return [None if array is None else (array.shape[1:], array.dtype) for array in submission.inputs]


_log = logging.getLogger(__name__)


class Service:
    """Answers submissions for the models in service. Any thread may call any method."""

    def __init__(
        self,
        engine: Engine,
        tensors: Callable[[tuple[Any, ...]], tuple[Any, ...]],
        *,
        max_active: int | None = None,
        aging_s: float = 1.0,
    ) -> None:
        self._engine = engine
        self._tensors = tensors
        slots = sum(device.slots for device in engine.platform.devices)
        self._max_active = max_active or 2 * slots
        self._changed = threading.Condition()
        self._waiting = Waiting(aging_s, _lanes(engine.platform))
        self._active = 0
        self._numbers = itertools.count()
        self._here = threading.local()  # has `calling` while a thread calls the callbacks of a batch
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
        self._engine.prepare(model.graph)
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

    def remove(self, model: Model, *, drain: bool) -> None:
        """Take a model out of service and wait until nothing of it runs; see `MultiModelScheduler`."""
        self._require_waitable("remove")
        with self._changed:
            model.removed = True
            dropped = [] if drain else model.take_waiting()
            self._changed.notify_all()
        error = SchedulerClosedError(f"model {model.name!r} was removed")
        thread_ends = [self._settle(submission, None, error) for submission in dropped]
        if not drain:
            self._engine.abandon(lambda request: request.graph is model.graph, error)
        with self._changed:
            while model.waiting or model.running:
                self._changed.wait()
            self._waiting.models.pop(model.name, None)
            self._changed.notify_all()
        _raise_first(thread_ends)

    def submit(self, submission: Submission, timeout_s: float | None) -> None:
        """Let a submission wait for its turn, as soon as its model's queue has room."""
        model = submission.model
        submission.future.set_running_or_notify_cancel()
        if self._is_calling():
            timeout_s = 0.0
        with self._changed:
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
            model.account.counts["submitted"] += 1
            model.waiting.append(submission)
        self._begin_what_can()

    def statistics(self) -> SchedulerStatistics:
        """Return counts, latencies, missed deadlines and the use of devices so far."""
        devices = self._engine.statistics()
        with self._changed:
            models = {name: model.account.statistics() for name, model in self._waiting.models.items()}
            return SchedulerStatistics(models, devices, len(self._waiting), self._active)

    def drain(self) -> None:
        """Wait until everything submitted has ended; see `MultiModelScheduler`."""
        self._require_waitable("drain")
        with self._changed:
            self._changed.wait_for(lambda: not self._active and not len(self._waiting))

    def close(self) -> None:
        """Fail what is unfinished with SchedulerClosedError and close the engine. May be called again."""
        with self._changed:
            self.closed = True
            left = [s for model in self._waiting.models.values() for s in model.take_waiting()]
            self._changed.notify_all()
        error = SchedulerClosedError("the scheduler was closed")
        thread_ends = [self._settle(submission, None, error) for submission in left]
        self._engine.close()
        _raise_first(thread_ends)

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
                if self._active >= self._max_active:
                    return
                batch = self._waiting.next_batch()
                if not batch:
                    return
                self._active += 1
                batch[0].model.running += 1
                batch[0].model.account.counts["batches"] += 1
                self._changed.notify_all()
            self._begin(batch)

    def _begin(self, batch: list[Submission]) -> None:
        def on_done(request: Request, outputs: Any, error: BaseException | None) -> None:
            self._settle_all(batch, outputs, error)
            self._begin_what_can()

        try:
            request = Request(
                next(self._numbers),
                batch[0].model.graph,
                self._tensors(join_inputs(batch)),
                min(s.arrival_s for s in batch),
                max(s.priority for s in batch),
                min((s.deadline_s for s in batch if s.deadline_s is not None), default=None),
                float(sum(s.examples for s in batch)),
                on_done,
            )
            self._engine.start(request)
        except BaseException as error:
            self._settle_all(batch, None, error)

    def _settle_all(self, batch: list[Submission], outputs: Any, error: BaseException | None) -> None:
        rows: list[Any] = [None] * len(batch)
        if error is None:
            try:
                arrays = tuple(output.numpy() for output in outputs)
                rows = [batch[0].model.pack(part) for part in split_outputs(batch, arrays)]
            except BaseException as raised:
                error = raised
        was_calling, self._here.calling = self._is_calling(), True
        for submission, row in zip(batch, rows, strict=True):
            self._settle(submission, row, error)
        self._here.calling = was_calling
        with self._changed:
            self._active -= 1
            batch[0].model.running -= 1
            self._changed.notify_all()

    def _settle(
        self, submission: Submission, result: Any, error: BaseException | None
    ) -> BaseException | None:
        """End a submission; return what a callback of its future raised to end the thread.

        A worker must outlive such a callback, since other submissions wait for it. A plain `Exception` is
        logged by the future itself.
        """
        with self._changed:
            submission.model.account.book(
                arrival_s=submission.arrival_s,
                end_s=time.monotonic(),
                deadline_s=submission.deadline_s,
                failed=error is not None,
            )
        try:
            if error is None:
                submission.future.set_result(result)
            else:
                submission.future.set_exception(error)
        except BaseException as raised:
            _log.exception("a callback of a future failed")
            return raised
        return None


def _raise_first(errors: Iterable[BaseException | None]) -> None:
    """Raise what a callback raised to end the caller's own thread, now that everything is settled."""
    for error in errors:
        if error is not None:
            raise error


def _lanes(platform: Platform) -> int:
    """Return how many batches run side by side: on the GPUs, or where there is none on the cores."""
    return sum(device.slots for device in platform.of_kind("gpu") or platform.devices)
