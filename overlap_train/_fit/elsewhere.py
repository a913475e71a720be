"""Validation by an evaluator elsewhere: snapshots go into a directory, and results come out of it.

The training thread of the chief submits snapshots. One thread writes them, looks for the results and puts
them into futures, one after another. The other training hosts get the results from the chief.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
import warnings
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

from overlap_train._callbacks.hooks import wants_test_batches
from overlap_train._checkpoint.run_directory import LEAST_WAIT_S, Entry, RunWriter, until_next_look
from overlap_train._fit.request import FitRequest
from overlap_train._keras import data as keras_data
from overlap_train._snapshot import ModelState, Snapshot, Values
from overlap_train._support.encoding import encoded
from overlap_train._support.fit_arguments import epoch_selector
from overlap_train._support.threads import leaves_nothing, start
from overlap_train._validation.pending import NamedRunner, PendingValidation, Runner
from overlap_train._validation.suite import ValidationSuite
from overlap_train.errors import HostLostError
from overlap_train.records import ShardOutcome, Span, ValidationResult

# Without a sign of the evaluator; directories on a network show new files late.
_QUIET_S = 60.0


def packed(results: Mapping[str, ValidationResult]) -> dict[str, Any]:
    """Returns results by the names of their sets, as a file holds them."""
    plain = {name: (result.metrics, result.of_function) for name, result in results.items()}
    return dict(json.loads(encoded(plain)))


def _unpacked(plain: Mapping[str, Any]) -> dict[str, ValidationResult]:
    results = {}
    for name, (metrics, of_function) in plain.items():
        values = {n: np.asarray(v) if isinstance(v, list) else v for n, v in metrics.items()}
        results[name] = ValidationResult(values, of_function=of_function)
    return results


class _Request(Future[ShardOutcome]):
    """Weights on their way to the evaluator, whose results may be given up also while they are waited for."""

    def __init__(self, entry: Entry, step: int, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        super().__init__()
        self.entry = entry
        self.step = step
        self.arrays = arrays
        self.start_s = time.monotonic()
        self.written = self.given_up = False

    def cancel(self) -> bool:
        self.given_up = True
        return super().cancel()


class Evaluator(Runner):
    """The evaluator that the policy names as the training sees it, which runs all its sets.

    Belongs to the training thread.
    """

    draws_anew = runs_python = False  # another process sees nothing of the callbacks

    def __init__(self, request: FitRequest, *, looks_only: bool = False) -> None:
        """Touches nothing before `open`; idle on hosts other than the chief, and if it `looks_only`."""
        settings, policy, checkpoints = request.settings, request.settings.evaluator, request.checkpoints
        assert policy is not None
        if checkpoints is not None and checkpoints.keep_weights is not None:
            policy = replace(policy, keep_weights=True)
        self._idle = looks_only or not settings.hosts.is_chief
        self._policy = policy
        self._on_span = settings.recorder.add  # on the thread that looks for results
        self._files = RunWriter(policy.directory, request.model, settings.described_validation)
        self._directory = self._files.directory
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._ending = False
        self._requests: list[_Request] = []  # appended to by the training thread, emptied by the other one
        self._changed_s = self._warned_s = self._lost_s = 0.0

    def take(self, state: ModelState) -> None:
        """Takes the variables of the snapshots that follow."""
        self._files.take(state)

    def open(self) -> None:
        """Says in the directory that this run has begun, and starts the thread. Idempotent."""
        if self._idle or self._thread is not None:
            return
        self._files.open()
        work = leaves_nothing(self._work)
        self._thread = start(threading.Thread(target=work, name="validation-elsewhere", daemon=True))

    def start(self, snapshot: Snapshot) -> list[Future[ShardOutcome]]:
        """Begins to evaluate a snapshot, as that of an epoch's end or of a place inside one."""
        ends_epoch = snapshot.position is not None and not snapshot.position.within
        return [] if self._idle else [self._ask("weights" if ends_epoch else "inside", snapshot)]

    def evaluate(self, values: Values, *, alone: bool = False) -> Any:
        """Evaluates values now, and waits for the results; None on hosts that have none."""
        if self._idle:
            return None
        return self._ask("inside", Snapshot(epoch=0, step=0, values=values)).result().result

    def __enter__(self) -> Evaluator:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Says how the training ended; one that failed says nothing, like one that was killed."""
        if self._thread is None:
            return
        self._ending = True
        self._wake.set()
        self._thread.join()
        self._files.__exit__(kind)

    def _ask(self, kind: str, snapshot: Snapshot) -> _Request:
        self.open()
        entry = self._files.next(kind, snapshot.epoch)
        request = _Request(entry, snapshot.step, self._files.arrays_of(snapshot.values))
        self._requests.append(request)
        self._wake.set()
        return request

    def _work(self) -> None:
        while not self._ending:
            try:
                self._look()
            except Exception as error:  # of the disk, or a warning that is to be an error
                for request in list(self._requests):
                    self._fail(request, error)
            self._wake.wait(until_next_look(time.monotonic() - self._changed_s))
            self._wake.clear()

    def _look(self) -> None:
        """Writes what is to be written and takes up what has come."""
        for request in list(self._requests):
            if request.given_up:
                self._drop(request)
            elif not request.written:
                self._write(request)
        if not self._requests:
            return
        oldest, seen_s = self._requests[0], self._files.seen_s()
        if not (oldest.running() or oldest.set_running_or_notify_cancel()):
            self._drop(oldest)  # given up since the look above
        elif not self._take(oldest):
            self._give_up(oldest, seen_s)

    def _write(self, request: _Request) -> None:
        self._files.write(request.entry, request.step, request.arrays)
        request.written, request.arrays = True, {}
        self._changed_s = time.monotonic()

    def _take(self, request: _Request) -> bool:
        """Takes the results of a request if they are there."""
        entry = request.entry._replace(kind="result")
        if entry not in self._directory.entries("result"):
            return False
        answer = self._directory.read(entry).meta
        if answer["error"] is not None:
            self._fail(request, RuntimeError(f"on the evaluator: {str(answer['error'])[:3000]}"))
            return True
        thread, now_s = threading.current_thread().name, time.monotonic()
        span = Span("validate", thread, request.start_s, now_s, entry.epoch, request.step)
        self._on_span(span)
        self._drop(request, answered=True)
        self._changed_s = now_s
        request.set_result(ShardOutcome(answer["results"], span))
        return True

    def _give_up(self, request: _Request, seen_s: float) -> None:
        """Fails a request for which no evaluator is there; later ones at once, until there is a sign."""
        now, wait_s = time.monotonic(), max(self._policy.wait_s, LEAST_WAIT_S)
        silent_s = now - max(request.start_s, seen_s)
        where = f"no evaluator gives a sign of life in {self._directory.path}"
        if silent_s >= min(_QUIET_S, wait_s / 2) and self._warned_s <= seen_s:
            self._warned_s = now
            warnings.warn(f"{where}; waiting up to {wait_s:g} s for one", RuntimeWarning, stacklevel=2)
        if self._lost_s > seen_s or silent_s >= wait_s:
            self._lost_s = now
            self._fail(request, HostLostError(f"{where} for {wait_s:g} s; start evaluate_run there (again)"))

    def _fail(self, request: _Request, error: BaseException) -> None:
        self._drop(request)
        if request.running() or request.set_running_or_notify_cancel():
            request.set_exception(error)

    def _drop(self, request: _Request, *, answered: bool = False) -> None:
        """Forgets a request, and its files unless they are kept."""
        self._requests.remove(request)
        self._wake.set()  # the next one may have been answered as well
        entry = request.entry
        if entry.kind != "weights" or not self._policy.keep_weights:
            self._files.forget(entry)
        elif not answered:  # so that no evaluator hurries for it
            with contextlib.suppress(OSError):
                self._directory.answer(entry, {}, "left out by the training")


def refuse_listeners(callbacks: Iterable[keras.callbacks.Callback]) -> None:
    """Refuses callbacks that listen to the batches of a validation, which nothing here sees."""
    for callback in filter(wants_test_batches, callbacks):
        raise ValueError(
            f"{type(callback).__name__} listens to the batches of validations, which an evaluator makes in "
            "another process; leave it out, or leave ValidationPolicy(evaluator=...) out"
        )


class ElsewhereSuite(ValidationSuite):
    """What an evaluator evaluates; it says of which sets and functions. Belongs to the training thread."""

    def __init__(self, evaluator: Evaluator, request: FitRequest) -> None:
        selectors = [epoch_selector(freq) for freq in request.elsewhere]
        runner = NamedRunner("", evaluator, lambda epoch: any(selects(epoch) for selects in selectors))
        settings = request.settings
        super().__init__([runner], on_error=settings.validation.on_error, hosts=settings.hosts)
        self._evaluator = evaluator

    def evaluate(self, name: str, values: Values, *, alone: bool = False) -> ValidationResult:
        """Evaluates values now, of which a hook has changed some since they were trained."""
        return _unpacked(self._evaluator.evaluate(values))[name]

    def _merge(
        self, validation: PendingValidation, spans: list[Span], values: Values
    ) -> dict[str, ValidationResult]:
        outcomes = self._outcomes(validation)
        spans += [outcome.span for outcome in outcomes]
        results = _unpacked(self.hosts.from_chief(outcomes[0].result if outcomes else None))
        for result in results.values():
            if not result.metrics:
                keras_data.warn_out_of_data()
        return results
