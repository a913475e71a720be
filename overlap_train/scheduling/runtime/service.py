"""Models in service: what is submitted for them waits, is batched and runs on the engine.

One lock owns what waits and the accounts; it is never held while the engine is called. Results are
delivered on the worker thread that ran the last layer. A batch counts as running until all of its callbacks
have been called, so nothing waits in one of them: it would wait for itself.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from overlap_train._support.arguments import shown
from overlap_train.errors import QueueFullError, SchedulerClosedError, SchedulingError
from overlap_train.scheduling.graph.devices import Platform
from overlap_train.scheduling.graph.requests import Request
from overlap_train.scheduling.runtime.accounts import SchedulerStatistics
from overlap_train.scheduling.runtime.admission import (
    Limits,
    Model,
    Submission,
    Waiting,
    join_inputs,
    split_outputs,
)
from overlap_train.scheduling.runtime.engine import Engine

__all__ = ["Service"]

_log = logging.getLogger(__name__)


class Service:
    """Answers submissions for the models that it has been given. Any thread may call any method."""

    def __init__(
        self, engine: Engine, tensors: Callable[[tuple[Any, ...]], tuple[Any, ...]], limits: Limits
    ) -> None:
        self._engine = engine
        self._tensors = tensors
        slots = sum(device.slots for device in engine.platform.devices)
        self._max_active = limits.max_active or 2 * slots
        self._changed = threading.Condition()
        self._waiting = Waiting(limits.aging_s, _lanes(engine.platform))
        self._active = 0
        self._numbers = itertools.count()
        self._here = threading.local()  # has `calling` while a thread calls the callbacks of a batch
        self.closed = False

    def require_free(self, name: str) -> None:
        """Raise ValueError if a model of that name is in service, SchedulerClosedError after `close`."""
        with self._changed:
            self._require_free(name)

    def add(self, model: Model) -> None:
        """Take a model into service."""
        self._engine.prepare(model.graph)
        with self._changed:
            self._require_free(model.name)
            self._waiting.models[model.name] = model

    def model(self, name: str) -> Model:
        """Return a model in service."""
        with self._changed:
            self._check_open()
            if not isinstance(name, str) or name not in self._waiting.models:
                served = sorted(self._waiting.models)
                raise KeyError(f"no model is named {shown(name)}; in service are {served}")
            return self._waiting.models[name]

    def remove(self, model: Model, *, drain: bool) -> None:
        """Take a model out of service and wait until nothing of it runs; see `MultiModelScheduler`."""
        self._require_waitable("remove")
        with self._changed:
            model.removed = True
            dropped = [] if drain else model.take_waiting()
            self._changed.notify_all()
        error = SchedulerClosedError(f"model {model.name!r} was removed")
        raised = [self._settle(submission, None, error) for submission in dropped]
        if not drain:
            self._engine.abandon(lambda request: request.graph is model.graph, error)
        with self._changed:
            while model.waiting or model.running:
                self._changed.wait()
            self._waiting.models.pop(model.name, None)
            self._changed.notify_all()
        _raise_first(raised)

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
                model.account.rejected += 1
                raise QueueFullError(
                    f"{model.max_pending} requests for {model.name!r} are waiting and none began within "
                    f"{timeout_s} s; submit less, wait longer, or raise max_pending"
                )
            model.account.submitted += 1
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
        raised = [self._settle(submission, None, error) for submission in left]
        self._engine.close()
        _raise_first(raised)

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

    def _require_free(self, name: str) -> None:
        self._check_open()
        if name in self._waiting.models:
            raise ValueError(f"a model named {name!r} is in service; remove it first or choose another name")

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
                batch[0].model.account.batches += 1
                self._changed.notify_all()
            error = self._begin(batch)
            if error is not None:
                self._settle_all(batch, None, error)

    def _begin(self, batch: list[Submission]) -> BaseException | None:
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
            return error
        return None

    def _settle_all(self, batch: list[Submission], outputs: Any, error: BaseException | None) -> None:
        rows: list[Any] = [None] * len(batch)
        if error is None:
            try:
                arrays = tuple(output.numpy() for output in outputs)
                rows = [batch[0].model.pack(part) for part in split_outputs(batch, arrays)]
            except BaseException as raised:
                error = raised
        around, self._here.calling = self._is_calling(), True
        for submission, row in zip(batch, rows, strict=True):
            self._settle(submission, row, error)
        self._here.calling = around
        with self._changed:
            self._active -= 1
            batch[0].model.running -= 1
            self._changed.notify_all()

    def _settle(
        self, submission: Submission, result: Any, error: BaseException | None
    ) -> BaseException | None:
        """Give a submission its end; returns what a callback of its future raised to end the thread.

        A worker must outlive its users' callbacks, and others wait for what comes behind this one. What is
        less than the end of a thread the future logs itself.
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


def _raise_first(raised: Iterable[BaseException | None]) -> None:
    """On the caller's own thread, what ends it ends it once all is done."""
    for error in raised:
        if error is not None:
            raise error


def _lanes(platform: Platform) -> int:
    """Return how many batches run side by side: on the GPUs, or where there is none on the cores."""
    counted = platform.of_kind("gpu") or tuple(platform.devices)
    return sum(device.slots for device in counted)
