"""The validation sets of a `fit`, one or several by name, evaluated by one pool."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait

import keras

from overlap_train._snapshot import ModelState, Snapshot, Values
from overlap_train._support.printing import error_text
from overlap_train._support.reasons import Reason
from overlap_train._support.threads import in_background
from overlap_train._validation.evaluation import SnapshotEvaluator
from overlap_train._validation.live import LiveRunner, WaitingRunner
from overlap_train._validation.pending import NamedRunner, PendingEpoch, PendingValidation, Runner, on_set
from overlap_train._validation.pool import WorkerPool
from overlap_train._validation.runner import ValidationRunner
from overlap_train.errors import ValidationTimeoutError, ValidationWorkerError
from overlap_train.parallel.hosts import Hosts
from overlap_train.records import ShardOutcome, Span, ValidationResult

# From one epoch's end to the next one's first call the training needs less, unless a callback takes long.
_HOLD_S = 0.05
# Several hosts meet in between, each time for the slowest, which a validation would make slower still.
_HOLD_TOGETHER_S = 2.0
# From Python into a compiled call; workers that wake up meanwhile would take turns with it at Python's lock.
_HEAD_START_S = 0.002


class ValidationSuite:
    """Starts and collects the validations of snapshots. Belongs to the training thread."""

    def __init__(
        self,
        sets: Sequence[NamedRunner],
        *,
        on_error: str = "raise",
        hosts: Hosts | None = None,
        pool: WorkerPool | None = None,
    ) -> None:
        self.hosts = hosts if hosts is not None else Hosts()
        self._sets = {named.name: named for named in sets}
        self._on_error = on_error
        self._pool = pool
        self._function_pools: list[WorkerPool] = []
        self._drawing: Future[None] | None = None

    def add_function(self, named: NamedRunner, pool: WorkerPool | None) -> None:
        """Adds an evaluation function after the sets."""
        self._sets[named.name] = named
        if pool is not None:
            self._function_pools.append(pool)

    def __bool__(self) -> bool:
        return bool(self._sets)

    @property
    def _runners(self) -> list[Runner]:
        return [named.runner for named in self._sets.values()]

    @property
    def reasons(self) -> list[Reason]:
        """Why training must not run ahead of these validations."""
        return [runner.in_step for runner in self._runners if runner.in_step is not None]

    def _evaluators(self, epoch: int | None = None) -> Iterator[SnapshotEvaluator]:
        """Yields what evaluates snapshots here, of the sets that are due after an epoch or of all."""
        for named in self._sets.values():
            if isinstance(named.runner, ValidationRunner) and (epoch is None or named.validates(epoch)):
                yield named.runner.evaluator

    def count_ahead(self, epoch: int, state: ModelState) -> None:
        """Adds to the counters of a model what the validation of an epoch will add to them.

        So the training goes on as behind that validation, and callbacks find what it leaves.
        """
        for evaluator in self._evaluators(epoch):
            evaluator.count_ahead(state)

    def changed_metric(self) -> str | None:
        """Returns the setting of a metric that has changed since it was traced, in words; or None."""
        changes = (evaluator.changed_metric() for evaluator in self._evaluators())
        return next((name for name in changes if name is not None), None)

    def reads_by_python(self, epoch: int | None = None) -> bool:
        """Whether Python sets the metrics back and reads them for validations: of an epoch, or of any."""
        return any(evaluator.by_python for evaluator in self._evaluators(epoch))

    @property
    def waiting(self) -> list[str]:
        """The sets whose validation is built when it is first due."""
        return [name for name, named in self._sets.items() if isinstance(named.runner, WaitingRunner)]

    def waits_for(self, epoch: int) -> bool:
        """Whether a validation is due for the first time after an epoch, and to be built then."""
        return any(self._sets[name].validates(epoch) for name in self.waiting)

    @property
    def rewindable(self) -> bool:
        """Whether validations that were dropped can be made again with the same data."""
        return all(runner.rewindable for runner in self._runners)

    @property
    def draws_anew(self) -> bool:
        """Whether a validation makes batches that an earlier one may have left out."""
        return any(runner.draws_anew for runner in self._runners)

    @property
    def runs_python(self) -> bool:
        """Whether a validation runs the user's code, which may see what callbacks keep."""
        return any(runner.runs_python for runner in self._runners)

    @property
    def draws_in_order(self) -> bool:
        """Whether batches are drawn before the training goes on, and behind all that came before."""
        return any(isinstance(runner, ValidationRunner) and runner.draws_in_order for runner in self._runners)

    def admit(self, most: int | None, *, beside_call: bool = False) -> None:
        """Lets the workers go on, up to `most` of those of the sets at once; None for all.

        Those that have been held let a training call that is about to begin go first.
        """
        for pool in self._pools:
            pool.admit(most if pool is self._pool else None, after_s=_HEAD_START_S if beside_call else 0.0)

    @property
    def _pools(self) -> list[WorkerPool]:
        """Those of the sets and of each function."""
        return [pool for pool in (self._pool, *self._function_pools) if pool is not None]

    @property
    def shares_cores(self) -> bool:
        """Whether the workers are known to take cores from the training.

        They do not if they have devices of their own. Of evaluation functions it is unknown: they may wait.
        """
        return self._pool is not None and not self._function_pools

    @property
    def idle(self) -> bool:
        """Whether the workers have nothing to do."""
        return all(pool.idle for pool in self._pools)

    def hold(self) -> None:
        """Lets no worker begin before `admit`, or for a moment."""
        seconds = _HOLD_S if self.hosts.count == 1 else _HOLD_TOGETHER_S
        for pool in self._pools:
            pool.hold(seconds)

    def live_sets(self, epoch: int) -> list[str]:
        """Returns the sets that are validated live after an epoch, when it is delivered."""
        due = [named for named in self._sets.values() if named.validates(epoch)]
        return [named.name for named in due if isinstance(named.runner, LiveRunner)]

    def _live_runner(self, name: str) -> LiveRunner:
        runner = self._sets[name].runner
        assert isinstance(runner, LiveRunner)
        return runner

    def validate_live(
        self, name: str, snapshot: Snapshot, callbacks: keras.callbacks.CallbackList
    ) -> ShardOutcome | None:
        """Validates the model as it is on one set; None if it failed and `on_error` leaves it out.

        What is raised is raised as by Keras; what a callback raises in between counts as the validation's.
        """
        try:
            return self._live_runner(name).run(callbacks, snapshot)
        except Exception as error:
            if self._on_error == "raise":
                raise
            said = f"validating epoch {snapshot.epoch + 1} {on_set(name)}failed: {error_text(error)}"
            warnings.warn(f"left out: {said}", RuntimeWarning, stacklevel=2)
        return None

    def evaluate_live(self, name: str, callbacks: keras.callbacks.CallbackList) -> ValidationResult:
        """Validates the model as it is on one set, outside a fit; whatever goes wrong is raised as it is."""
        result: ValidationResult = self._live_runner(name).run(callbacks, None).result
        return result

    def run_live_alone(self) -> dict[str, ValidationResult]:
        """Validates the model as it is, inside an epoch, on the sets that are validated live."""
        runners = {name: named.runner for name, named in self._sets.items()}
        return {n: runner.run_alone() for n, runner in runners.items() if isinstance(runner, LiveRunner)}

    def due(self, epoch: int) -> bool:
        """Whether an epoch is validated on any set."""
        return any(named.validates(epoch) for named in self._sets.values())

    def wait_until_drawn(self, timeout_s: float | None, check: Callable[[], None]) -> None:
        """Waits until the batches that are to be drawn before the training goes on have been."""
        start_s = time.monotonic()
        while self._drawing is not None and not self._drawing.done():
            check()
            left_s = 0.1 if timeout_s is None else min(0.1, start_s + timeout_s - time.monotonic())
            if left_s <= 0:
                raise ValidationTimeoutError(
                    f"drawing the validation data did not end within timeout_s={timeout_s:g}: check whether "
                    "it ends, or raise ValidationPolicy(timeout_s=...)"
                )
            wait([self._drawing], timeout=left_s)
        self._drawing = None

    def start(self, snapshot: Snapshot, *, on_all: bool = False) -> list[PendingValidation]:
        """Begins to evaluate a snapshot on the sets whose turn it is, or on all."""
        sets = [named for named in self._sets.values() if on_all or named.validates(snapshot.epoch)]
        epoch = snapshot.epoch
        validations = [PendingValidation(epoch, each.name, each.runner.start(snapshot)) for each in sets]
        runners = [named.runner for named in sets if isinstance(named.runner, ValidationRunner)]
        in_order = [runner for runner in runners if runner.draws_in_order]
        if in_order:

            def draw() -> None:
                for runner in in_order:
                    runner.draw_ahead()

            # On a thread of its own, because data that never comes cannot be ended from outside.
            self._drawing = in_background(draw, "draws-validation-data", daemon=True)
        return validations

    def collect(self, pending: PendingEpoch) -> tuple[dict[str, ValidationResult], list[Span]]:
        """Merges the parts of an epoch's validations.

        Live validations are left out: they are made at delivery (`validate_live`).
        """
        results: dict[str, ValidationResult] = {}
        spans: list[Span] = []
        values = pending.snapshot.values
        for validation in pending.validations:
            if isinstance(self._sets[validation.name].runner, LiveRunner):
                continue
            try:
                results |= self._merge(validation, spans, values)
            except ValidationWorkerError as error:
                if self._on_error == "raise":
                    raise
                warnings.warn(f"left out: {error}", RuntimeWarning, stacklevel=2)
                pending.skipped = True
        return results, spans

    def evaluate(self, name: str, values: Values, *, alone: bool = False) -> ValidationResult:
        """Evaluates values on one set now, and waits for the result; see `Runner.evaluate`."""
        return self._sets[name].runner.evaluate(values, alone=alone)

    def warn(self) -> None:
        """Warns of what was odd about the last validation that `evaluate` made of each set."""
        for runner in self._runners:
            runner.warn()

    def close(self) -> None:
        """Ends what the data began."""
        for runner in self._runners:
            runner.close()

    def _outcomes(self, validation: PendingValidation) -> list[ShardOutcome]:
        """Returns the parts' results of this host once all hosts have theirs."""
        outcomes, failure = [], None
        try:
            outcomes = validation.outcomes()
        except ValidationWorkerError as error:
            failure = error
        messages = self.hosts.gather(None if failure is None else str(failure))
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # whose traceback has this frame: a circle that holds a snapshot
        for host, message in enumerate(messages):
            if message is not None:
                raise ValidationWorkerError(f"on host {host}: {message}", epoch=validation.epoch, shard=0)
        return outcomes

    def _merge(
        self, validation: PendingValidation, spans: list[Span], values: Values
    ) -> dict[str, ValidationResult]:
        runner = self._sets[validation.name].runner
        outcomes = self._outcomes(validation)
        spans += [outcome.span for outcome in outcomes]
        runner.warn([outcome.result for outcome in outcomes])
        result = runner.merge(outcomes, values)
        if isinstance(runner, ValidationRunner) and not runner.divides:
            self.hosts.check_same_logs(validation.epoch, result.metrics, did="validated")
        return {validation.name: result}
