"""Validation on another host: what stands in for a `ValidationRunner` where an evaluator does the work.

The training thread of the chief submits snapshots; one thread sends them, waits for the evaluator's answer
and puts it into a future, one after another. The other training hosts get the results from the chief.
"""

from __future__ import annotations

import contextlib
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from overlap_train._keras import data as keras_data
from overlap_train._snapshot import Snapshot, Values, weights_of
from overlap_train._support.numbers import array_of
from overlap_train._support.reasons import Reason
from overlap_train._validation.evaluation import Running
from overlap_train._validation.pool import WorkerPool
from overlap_train.errors import HostLostError
from overlap_train.parallel.hosts import Hosts
from overlap_train.parallel.link import Link, MisunderstoodError
from overlap_train.parallel.protocol import as_json, from_json, is_answer
from overlap_train.records import ShardOutcome, Span, ValidationResult

__all__ = ["RemoteEvaluator", "RemoteRunner", "TakeBack"]

# A validation under way when the training ends gets so long.
_GRACE_S = 10.0
# Enough for an evaluator that listens, and no long wait for one that does not.
_ONE_TRY_S = 0.1


class TakeBack(Protocol):
    """Returns a connection to an evaluator that was started again, or raises HostLostError."""

    def __call__(self, timeout_s: float, stopped: Callable[[], bool]) -> Link:
        """Tries for a time, unless `stopped` says that it is of no use any more."""


class RemoteEvaluator:
    """The evaluator, as the chief sees it. Belongs to the training thread.

    Messages to it have a `kind`: "validate" and "check" with the weights of a snapshot, answered by "result"
    or "error"; at the end "end" with the last weights, or "failed". When the evaluator is lost, the thread
    that talks to it waits until it has been started again, and sends the snapshot once more.
    """

    def __init__(
        self,
        link: Link,
        on_span: Callable[[Span], None],
        *,
        take_back: TakeBack | None = None,
        return_s: float = 0.0,
    ) -> None:
        """Starts the thread.

        Args:
            link: to the evaluator, which waits for messages.
            on_span: called, on that thread, with the time of each validation.
            take_back: connects again to an evaluator that was lost; None does without it.
            return_s: how long to wait for it; 0 does without it. Once it has not come in that time, each
                further validation looks for it only once.
        """
        self._link = link
        self._on_span = on_span
        self._take_back = take_back if return_s > 0 else None
        self._return_s = return_s
        self._in_vain = False
        self._lock = threading.Lock()  # around the change of the link and the end
        self._ending = False
        self._pool = WorkerPool(1, name="validation-link")

    def validate(self, name: str, snapshot: Snapshot) -> Future[ShardOutcome]:
        """Sends a snapshot to be evaluated on one set, after those that were sent before."""
        return self._pool.submit(self._validate, name, snapshot)

    def check(self, name: str, values: Values) -> None:
        """Has one batch of a set evaluated, and waits for it.

        Raises:
            RuntimeError: with what the evaluator raised.
            HostLostError: if it has gone.
        """
        self._pool.submit(self._ask, {"kind": "check", "set": name}, values).result()

    def end(self, message: Mapping[str, Any], values: Values | None = None, *, now: bool = False) -> None:
        """Sends a last message, with weights or without, and closes the connection. Idempotent.

        A validation under way gets ten seconds to end, or none `now`; after that the evaluator finds the
        chief gone.
        """
        with self._lock:
            self._ending = True  # an evaluator that is lost from here on is not waited for
        if not self._pool.close(0.0 if now else _GRACE_S):
            with self._lock:
                self._link.abort()
            self._pool.close()
        with contextlib.suppress(HostLostError):  # whoever waited for a result has been told
            self._link.send(message, _arrays(values) if values is not None else ())
        self._link.close()

    def _validate(self, name: str, snapshot: Snapshot) -> ShardOutcome:
        start_s = time.monotonic()
        message = {"kind": "validate", "set": name, "epoch": snapshot.epoch}
        answer = self._ask(message, snapshot.values)
        # In this host's time; the clock of the evaluator is another one.
        thread = threading.current_thread().name
        span = Span("validate", thread, start_s, time.monotonic(), snapshot.epoch, snapshot.step)
        self._on_span(span)
        running = tuple(Running(from_json(logs), ()) for logs in answer["running"])
        return ShardOutcome(ValidationResult(from_json(answer["metrics"]), running), span)

    def _ask(self, message: Mapping[str, Any], values: Values) -> dict[str, Any]:
        arrays = _arrays(values)
        try:
            answer = self._exchange(message, arrays)
        except HostLostError as error:
            if self._take_back is None or self._ending:
                raise
            self._wait_for_return(self._take_back, error)
            answer = self._exchange(message, arrays)
        if answer["kind"] == "error":
            raise RuntimeError(f"on the evaluator: {str(answer.get('error'))[:3000]}")
        return answer

    def _exchange(self, message: Mapping[str, Any], arrays: Sequence[Any]) -> dict[str, Any]:
        """Sends a message and returns the answer to it."""
        self._link.send(message, arrays)
        answer, _ = self._link.receive()
        if not is_answer(answer, with_metrics=message["kind"] == "validate"):
            raise MisunderstoodError(f"the evaluator cannot be understood: {str(answer)[:300]}")
        return answer

    def _wait_for_return(self, take_back: TakeBack, lost: HostLostError) -> None:
        """Waits until the evaluator has been started again."""
        self._link.close()
        timeout_s = _ONE_TRY_S if self._in_vain else self._return_s
        if not self._in_vain:
            warnings.warn(
                f"{lost}; waiting up to {timeout_s:g} s for an evaluator that is started again",
                RuntimeWarning,
                stacklevel=2,
            )
        self._in_vain = True
        try:
            link = take_back(timeout_s, lambda: self._ending)
        except HostLostError as error:
            raise HostLostError(f"{lost}, and has not come back: {error}") from error
        with self._lock:
            if self._ending:
                link.close()
                raise lost
            self._link, self._in_vain = link, False


class RemoteRunner:
    """Has snapshots evaluated on one validation set. Belongs to the training threads of all hosts.

    Attributes:
        rewindable: whether a validation can be made again, as the evaluator says.
        in_step: None: an evaluator is refused where training must not run ahead of its validations.
    """

    in_step: Reason | None = None
    live = False
    computes_here = False
    runs_python = False  # another process sees nothing of the callbacks

    def __init__(self, name: str, remote: RemoteEvaluator | None, hosts: Hosts, *, rewindable: bool) -> None:
        """Stands in for the evaluator of a set.

        Args:
            name: the set's.
            remote: the evaluator, on the chief; None on the other hosts.
            hosts: that train together.
            rewindable: see above.
        """
        self._name = name
        self._remote = remote
        self._hosts = hosts
        self.rewindable = rewindable

    def start(self, snapshot: Snapshot) -> list[Future[ShardOutcome]]:
        """Begins to evaluate a snapshot; on hosts other than the chief there is nothing to wait for."""
        return [] if self._remote is None else [self._remote.validate(self._name, snapshot)]

    def evaluate(self, values: Values, most: int | None = None) -> ValidationResult:
        """Evaluates values now, and waits for the result; see `Runner.evaluate`.

        Raises:
            ValueError: for the first batches alone, which an evaluator cannot be asked for.
            HostLostError: if the evaluator has gone.
            RuntimeError: with what it raised.
        """
        if most is not None:
            raise ValueError(
                "a callback's on_test_begin set stop_evaluating, and the evaluator makes whole validations: "
                "set it in no callback of a training with an evaluator"
            )
        futures = self.start(Snapshot(epoch=0, step=0, values=values))
        return self.merge([future.result().result for future in futures], values)

    def evaluate_one_batch(self, values: Values) -> None:
        """Has the first batch evaluated."""

        def check() -> None:
            if self._remote is not None:
                self._remote.check(self._name, values)

        self._hosts.chief_first(check)

    def warn(self, results: Sequence[Any] = ()) -> None:
        """Warns of a validation without a batch, as Keras does."""
        if results and not results[0].metrics:
            keras_data.warn_out_of_data()

    def merge(self, results: Sequence[ValidationResult], values: Values) -> ValidationResult:
        """Returns the chief's result on all hosts."""
        own = (
            [as_json(results[0].metrics), [as_json(r.logs) for r in results[0].running]] if results else None
        )
        metrics, running = self._hosts.from_chief(own)
        return ValidationResult(from_json(metrics), tuple(Running(from_json(logs), ()) for logs in running))

    def close(self) -> None:
        """Nothing: whoever made the connection closes it."""


def _arrays(values: Values) -> list[Any]:
    """Returns the weights of a snapshot as arrays, without a copy where the host's memory holds them."""
    return [array_of(value) for part in weights_of(values) for value in part]
