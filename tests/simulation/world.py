"""A fit of the package's own parts, whose compiled calls are arithmetic and whose threads are simulated.

Real are the session, the deliveries, the lag, the backlog, the suite, the runners, the pools, the hooks, the
position in the data, the writer of checkpoints and the handlers of signals. Stand-ins are the model, its
variables, the loop, the evaluator, the disk, and the pipe by which signals are heard.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import signal
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import keras
import tensorflow as tf

from overlap_train import CheckpointPolicy, ValidationPolicy, _snapshot
from overlap_train._callbacks import delivery, late, replay
from overlap_train._callbacks.hooks import hook_that_waits
from overlap_train._checkpoint import content, resume
from overlap_train._data.cursor import Cursor
from overlap_train._data.feed import Feed
from overlap_train._data.streamed_batches import BatchStream, StreamedBatches
from overlap_train._fit import interrupts
from overlap_train._fit.build import FitParts
from overlap_train._fit.course import Course as FitCourse
from overlap_train._fit.course import Ledger
from overlap_train._fit.deliveries import Deliveries
from overlap_train._fit.epoch_training import EpochTraining
from overlap_train._fit.lag import IdleCores, LagControl
from overlap_train._fit.session import FitSession, Opening
from overlap_train._keras import routes
from overlap_train._snapshot import ModelState, Snapshot
from overlap_train._support import signals, threads
from overlap_train._training.loops import Loop, Pace, StepsDone
from overlap_train._validation import functions, pool, runner
from overlap_train._validation.backlog import Backlog
from overlap_train._validation.evaluation import ShardResult
from overlap_train._validation.pending import NamedRunner
from overlap_train._validation.pool import WorkerPool
from overlap_train._validation.runner import ValidationRunner
from overlap_train._validation.step_validations import StepValidations, deliver_step_validation
from overlap_train._validation.suite import ValidationSuite
from overlap_train.errors import CheckpointError, ValidationWorkerError
from overlap_train.monitoring.quiet import QuietProgress
from overlap_train.monitoring.recorder import Accounts, SpanRecorder
from overlap_train.parallel.hosts import Hosts
from overlap_train.records import ValidationResult
from tests.simulation import scheduler as simulated
from tests.simulation.scenario import Course, Failed, Scenario, SetPlan, acted, evaluated, stepped

_TIMES_S = (0.0, 0.0, 0.01, 0.1, 0.4)


class Broken:
    """Keeps the first thing that was not as it must be, for a fit may lose an error among others."""

    error: AssertionError | None = None

    @classmethod
    def require(cls, is_so: bool, message: str) -> None:
        if not is_so:
            cls.error = cls.error or AssertionError(message)
            raise cls.error


def compute() -> None:
    """Take some time, and a core for it, as a compiled call does."""
    seconds = simulated.running().random.choice(_TIMES_S)
    simulated.running().cpu_s += seconds
    simulated.sleep(seconds)


class Cell:
    """A variable: an integer."""

    dtype, shape, is_sum = tf.int64, tf.TensorShape([]), False

    def __init__(self, name: str, value: int) -> None:
        self.name, self.value, self.handles = name, value, (object(),)

    def read(self) -> int:
        return self.value

    def assign(self, value: Any) -> None:
        self.value = int(value)


class State(ModelState):
    """The variables of the model: its weight, its rate and steps, the sum and the count of its metric."""

    def __init__(self) -> None:
        self.weight, self.rate, self.steps = Cell("weight", 1), Cell("rate", 1), Cell("steps", 0)
        self.metrics = [Cell("total", 0), Cell("count", 0)]
        self.outside, self._moving = [], []
        self._groups = [[self.weight], [], [self.rate, self.steps], self.metrics, []]
        self.variables = [cell for group in self._groups for cell in group]
        self._still = [*range(len(self.variables))]
        self._compared = [0, 1, 2]


class Model:
    """What the parts of a fit ask of a model."""

    def __init__(self, state: State) -> None:
        self.stop_training = self.stop_evaluating = False
        self.steps_per_execution, self.train_function = 1, object()
        self.optimizer, self.metrics, self._state = None, [], state

    def reset_metrics(self) -> None:
        self._state.set_metrics([0, 0])


class Rows(Feed):
    """Training data whose batches are numbers."""

    runs_python = False
    rewindable = True
    draws_seeds = False

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.num_batches = steps

    def new_pass(self) -> int:
        self.num_passes += 1
        return self.num_passes

    def rewind(self, num_passes: int) -> None:
        self.num_passes = num_passes

    def describe(self) -> dict[str, str]:
        return {}


class Steps(Loop):
    """Makes steps of integers, and checks how far they are ahead of what has been delivered."""

    name = "integers"

    def __init__(self, world: World) -> None:
        self._world = world

    def run(self, cursor: Cursor, max_steps: int) -> StepsDone:
        world, state = self._world, self._world.state
        world.check_ahead()
        for number in range(cursor.seen, cursor.seen + max_steps):
            compute()
            if world.scenario.failure == ("step", state.steps.value):
                raise Failed("step")
            batch = 100 * (cursor.current_pass - 1) + number
            state.weight.assign(stepped(state.weight.value, state.rate.value, batch))
            total, count = state.read_metrics()
            state.set_metrics([total + state.weight.value % 1000, count + 1])
            state.steps.assign(state.steps.value + 1)
            cursor.advance(1)
        return StepsDone(max_steps)


class Evaluator:
    """Evaluates integers."""

    indivisible, by_python, is_warm = None, False, True

    def __init__(self, world: World, plan: SetPlan) -> None:
        self._world, self._plan = world, plan

    def evaluate(self, values: Any, part: Any, data: Any = None) -> ShardResult:
        weight, steps = values.trainable[0], values.optimizer[1]
        scenario, epoch = self._world.scenario, (steps - 1) // self._world.scenario.steps
        if scenario.stuck == epoch and self._plan.kind == "held" and part.first == 0:
            self._world.unstuck.wait()
        total = count = 0
        for number, batch in self._batches(part):
            compute()
            total += evaluated(weight, self._plan.name, batch, number)
            count += 1
        if scenario.failure == ("evaluation", epoch) and self._plan.kind == "held":
            raise Failed("evaluation")
        return ShardResult((total, count), {}, count)

    def _batches(self, part: Any) -> Iterator[tuple[int, int]]:
        if not isinstance(part, BatchStream):
            yield from ((0, batch) for batch in range(part.first, part.stop))
            return
        while (batch := part.draw()) is not None:
            yield batch

    def merge(self, results: Any, values: Any, over_hosts: Any = None) -> ValidationResult:
        total, count = (sum(parts) for parts in zip(*(each.state for each in results), strict=True))
        return ValidationResult({"loss": float(total)}, (), (total, count))

    def count(self) -> int:
        return self._plan.batches

    def count_ahead(self, state: ModelState) -> None: ...

    def changed_metric(self) -> None: ...

    def data_on(self, device: str | None) -> None: ...


class Streamed(StreamedBatches):
    """Batches that Python makes, pass by pass."""

    def __init__(self, plan: SetPlan) -> None:
        nothing = lambda: None  # noqa: E731
        self._pipeline = SimpleNamespace(
            num_batches=plan.batches,
            is_dataset=False,
            looked_at=False,
            begin_epoch=nothing,
            end_epoch=nothing,
        )
        self._dataset, self._plan = self, plan
        self.numbers = self.drawn = self.begun = 0
        self.in_order, self.steps, self.is_dataset, self._seeds = plan.kind == "ordered", None, False, None
        self.rewindable = self.runs_python = True
        self.redraws = self.finds_end = self._has_warned = False
        self._under_way = self._only_iterator = self._newest = None
        self.last_count = self._num_iterators = self._closings = 0
        self._lock = simulated.threading.Lock()

    def __iter__(self) -> Iterator[tuple[int, int]]:
        self.numbers += 1
        for batch in range(self._plan.batches):
            self.drawn += 1
            yield self.numbers, batch

    @property
    def is_drawn(self) -> bool:
        """Whether nothing is left to be drawn for the validations that have begun."""
        return self.drawn == self.begun * self._plan.batches

    def begin(self) -> BatchStream:
        self.begun += 1
        return super().begin()


class Ends(keras.callbacks.Callback):
    """Notes the ends of epochs, and acts at some of them."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.events, self.inside, self.world = [], [], world

    def get_state(self) -> Any:
        return {
            "events": [list(event) for event in self.events],
            "inside": [list(each) for each in self.inside],
        }

    def set_state(self, state: Any) -> None:
        self.events = [tuple(event) for event in state["events"]]
        self.inside = [tuple(each) for each in state["inside"]]

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.events.append(("end", epoch, dict(logs)))
        compute()
        if self.world.scenario.failure == ("callback", epoch):
            raise Failed("callback")
        self._act("end", epoch)

    def on_step_validation(self, step: int, logs: Any) -> None:
        self.inside.append((step, dict(logs)))

    def on_train_end(self, logs: Any = None) -> None:
        self.events.append(("train end",))

    def _act(self, hook: str, epoch: int) -> None:
        world = self.world
        action = world.scenario.actions.get((hook, epoch))
        if action == "stop":
            world.model.stop_training = True
        if action is not None:
            weight, rate = acted(action, world.state.weight.value, world.state.rate.value)
            world.state.weight.assign(weight)
            world.state.rate.assign(rate)


class Begins(Ends):
    """Also notes the beginnings of epochs."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.events.append(("begin", epoch))
        self._act("begin", epoch)


class Batches(Begins):
    """Also notes the ends of batches."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.events.append(("batch", batch))


CALLBACKS = {"ends": Ends, "begins": Begins, "batches": Batches}


@functools.cache
def _waits(hooks: str, watched: bool) -> bool:
    """Whether a callback of a kind keeps the training in step, by the package's own rule."""
    return hook_that_waits(CALLBACKS[hooks](None), watched=watched) is not None


class Disk:
    """Takes the place of `CheckpointStore`; outlives the fits that write to it."""

    def __init__(self, failing: int | None = None) -> None:
        self._states: list[Any] = []
        self._failing, self._writes = failing, 0
        self.is_writing = self.is_locked = self.has_failed = False

    def __call__(self, directory: Any, keep: int) -> Disk:
        return self

    def acquire(self) -> None:
        Broken.require(not self.is_locked, "two fits have the directory")
        self.is_locked = True

    def save(self, state: Any) -> str:
        Broken.require(self.is_locked, "a checkpoint is written without the lock")
        Broken.require(not self.is_writing, "two checkpoints are written at a time")
        self.is_writing = True
        try:
            compute()
            self._writes += 1
            if self._failing == self._writes - 1:
                self.has_failed = True
                raise CheckpointError("write")
            self._states.append(state)
            compute()
        finally:
            self.is_writing = False
        return "checkpoint"

    def load_latest(self, check: Any) -> Any:
        return check(self._states[-1]) if self._states else None

    def close(self) -> None:
        Broken.require(not self.is_writing, "the directory is unlocked while a checkpoint is written")
        self.is_locked = False


class Listener:
    """Takes the place of `SignalListener`: a thread that hears of the signals which `post` brings."""

    now: Listener | None = None

    def __init__(self, act: Any) -> None:
        self._act, self._changed, self._numbers = act, simulated.threading.Condition(), []

    def __enter__(self) -> Listener:
        self._thread = simulated.Thread(target=self._run, name="signals")
        with contextlib.suppress(RuntimeError):
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        Listener.now = None
        self.post(0)
        if self._thread.ident is not None:
            self._thread.join()

    def post(self, number: int) -> None:
        with self._changed:
            self._numbers.append(number)
            self._changed.notify()

    def _run(self) -> None:
        seconds = None
        while True:
            with self._changed:
                if not self._numbers:
                    self._changed.wait(seconds)
                numbers, self._numbers = self._numbers, []
            if 0 in numbers:
                return
            seconds = self._act(bytes(numbers))


class EndedBySystem(BaseException):
    """The process has been ended by a signal."""


def replace_what_is_compiled() -> None:
    """Put the stand-ins of this module in their places."""
    same = lambda one, other: one == other  # noqa: E731
    for module in (_snapshot, replay, late):
        module.same_bits = same
    for module in (content, resume):
        module.stored_values = _stored_values
    pool._report_leak = lambda *_: None  # of a process that has been killed
    threads._CONTEXT = None  # of TensorFlow's threads, which a thread that ends is to leave
    functions.Attributes = SimpleNamespace(of=lambda model: "attributes")
    routes._local = simulated.threading.local()
    tf.is_tensor = lambda value: False  # which Keras asks about each number of the logs
    runner.tf = SimpleNamespace(device=contextlib.nullcontext)  # TensorFlow keeps devices by thread
    interrupts.SignalListener = Listener
    interrupts.end_by = _end
    interrupts.os = SimpleNamespace(getpid=lambda: 0, kill=lambda process, number: _send())


def _stored_values(state: ModelState, arrays: Any) -> Any:
    return state.pack([int(array) for array in arrays])


def _end(number: int) -> None:
    simulated.running().fail(EndedBySystem())
    raise simulated.Abandoned


def _send() -> None:
    simulated.running().signal_now()


def signalled() -> bool:
    """Have a signal come to the main thread, as Python does; return whether a fit is there to hear it."""
    handler = signal.getsignal(signal.SIGINT)
    owner = getattr(handler, "__self__", None)
    if Listener.now is None or not isinstance(owner, interrupts.Interrupts) or owner._over:
        return False
    Listener.now.post(signal.SIGINT)
    handler(signal.SIGINT, None)
    return True


def forget_process() -> None:
    """Put back what the end of a process takes with it."""
    Broken.error = None
    Listener.now = None
    signals._undoing.clear()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


class World:
    """One process that runs the fit of a scenario. Made on the simulated main thread."""

    def __init__(self, scenario: Scenario, disk: Disk) -> None:
        self.scenario, self.disk = scenario, disk
        self.state = State()
        self.model = Model(self.state)
        self.unstuck = simulated.threading.Event()
        self.snapshots: weakref.WeakSet[Snapshot] = weakref.WeakSet()
        self.weights: dict[int, int] = {}  # at the ends of epochs, as last trained
        self.actor = CALLBACKS[scenario.hooks](self)
        self.session: FitSession | None = None
        self.asked: interrupts.Interrupts | None = None
        self.calls_after_signal, self.ordered, self.idle = 0, [], IdleCores(2)
        self.policy = ValidationPolicy(max_lag=scenario.max_lag, **scenario.policy)
        resume.CheckpointStore = disk

    def run(self) -> Course:
        """Run the fit and return what came of it."""
        course, ended, before = Course(), "failed", signal.getsignal(signal.SIGINT)
        try:
            with contextlib.ExitStack() as resources:
                resources.callback(self.unstuck.set)
                session = self._build(resources)
                try:
                    session.run()
                    ended = session.ended
                finally:
                    self.session = None
        except Exception as error:
            course.error = self._named(error)
        except KeyboardInterrupt:
            course.error = "KeyboardInterrupt"
        if self.asked is not None:  # and not ended just as it was entered
            assert signal.getsignal(signal.SIGINT) == before, "a handler stays"
        course.events, course.inside, course.ended = self.actor.events, self.actor.inside, ended
        course.weight, course.rate, course.steps = (c.value for c in self.state.variables[:3])
        return course

    def _named(self, error: BaseException) -> str:
        """Return what a scenario has raised, or the class and the text of an error of the package."""
        if isinstance(error, ValidationWorkerError):
            assert self.scenario.failure == ("evaluation", error.epoch)
        first = error
        while first.__cause__ is not None:
            first = first.__cause__
        name = str(first) if isinstance(first, Failed) else f"{type(first).__name__}: {first}"
        assert name != "evaluation" or isinstance(error, ValidationWorkerError)
        return name

    def check_ahead(self) -> None:
        """Make sure that the training is no further ahead than the policy says, and keeps no more."""
        deliveries = self.session._deliveries
        self.calls_after_signal += self.asked.received is not None
        Broken.require(self.calls_after_signal <= 1, "the training goes on after a signal")
        is_drawn = all(each.is_drawn for each in self.ordered)
        Broken.require(is_drawn, "the training goes on before data is drawn")
        epoch, waiting = deliveries._course.next_epoch, len(deliveries)
        delivered = sum(event[0] == "end" for event in self.actor.events)
        if self.policy.backlog == "block":
            Broken.require(epoch - delivered <= deliveries.backlog.max_lag, f"{delivered} delivered")
            count = epoch - delivered
            Broken.require(count == waiting, f"{waiting} wait, {count} are not delivered")
        Broken.require(waiting < self.policy.max_snapshots, f"{waiting} snapshots wait")
        alive, workers = len(self.snapshots), self.scenario.workers + self.scenario.function
        # A checkpoint that is being written keeps the epochs that waited then, and a validation inside one.
        written = 0 if self.scenario.checkpoints is None else self.scenario.max_lag + 1
        inside = "every_steps" in self.scenario.policy  # a validation waits for the next one
        most = waiting + workers + 1 + written + inside
        Broken.require(alive <= most, f"{alive} snapshots are alive, {waiting} wait")

    def _build(self, resources: contextlib.ExitStack) -> FitSession:
        """Build the parts of the fit, in the order of `FitBuilder`."""
        scenario, model = self.scenario, self.model
        recorder = SpanRecorder(clock=simulated.time.monotonic)
        suite = self._build_suite(resources, recorder)
        self.asked = resources.enter_context(interrupts.Interrupts())
        Listener.now = self.asked._listener
        resumer = self._build_resumer(resources)
        callbacks = keras.callbacks.CallbackList([self.actor], add_history=True, model=model)
        if resumer is not None:
            resumer.accept(callbacks.callbacks)
        ledger = Ledger(recorder, Accounts(), FitCourse(scenario.epochs, 0))
        deliveries = self._build_deliveries(suite, callbacks, resumer, ledger)
        resources.callback(deliveries.backlog.drop)
        training = EpochTraining(
            model=model,
            step=SimpleNamespace(metrics=_Metrics(self.state), own_logs=False),
            loop=Steps(self),
            pace=Pace(scenario.steps_per_call),
            deliveries=deliveries,
            idle=self.idle,
            interrupts=self.asked,
            take_snapshot=functools.partial(self._take_snapshot, ledger, deliveries.cursor),
        )
        sources = SimpleNamespace(read=lambda epoch, waiting: True)
        grounds = SimpleNamespace(changed=lambda: None)
        parts = FitParts(self.state, training, deliveries, grounds, sources)
        if resumer is not None:
            begin = callbacks.on_epoch_begin
            start = functools.partial(resumer.start, self.state, deliveries.cursor, begin)
            parts = dataclasses.replace(parts, start=start)
        settings = SimpleNamespace(model=model, hosts=Hosts(), scope=contextlib.nullcontext)
        callbacks.on_train_begin()
        self.session = FitSession(settings, parts, Opening(0, False, model.train_function), None)
        return self.session

    def _build_deliveries(
        self, suite: ValidationSuite, callbacks: Any, resumer: resume.Resumer | None, ledger: Ledger
    ) -> Deliveries:
        scenario, policy, progress = self.scenario, self.policy, QuietProgress()
        lag = 0 if _waits(scenario.hooks, suite.runs_python) else policy.max_lag
        backlog = Backlog(policy, suite, max_lag=lag)
        stepwise = None
        if suite and policy.every_steps is not None:
            deliver = functools.partial(deliver_step_validation, callbacks.callbacks)
            stepwise = StepValidations(suite, policy.every_steps, deliver, timeout_s=policy.timeout_s)
        deliver_to = delivery.Delivery(
            self.model, self.state, callbacks, on_change=policy.on_change, suite=suite
        )
        return Deliveries(
            callbacks=callbacks,
            hooks=late.LateHooks(self.model, callbacks, self.state, lambda: len(backlog) > 0, late=lag > 0),
            suite=suite,
            backlog=backlog,
            delivery=deliver_to,
            stepwise=stepwise,
            lag=LagControl(backlog, progress.message, self.idle if scenario.judges else None, streamed=False),
            resumer=resumer,
            cursor=Cursor(Rows(scenario.steps), None),
            ledger=ledger,
            progress=progress,
            hosts=Hosts(),
            timeout_s=policy.timeout_s,
            check_interrupted=self._check_interrupted,
        )

    def _check_interrupted(self) -> None:
        if self.asked.received is not None:
            raise interrupts.Interrupted

    def _build_suite(self, resources: contextlib.ExitStack, recorder: SpanRecorder) -> ValidationSuite:
        scenario = self.scenario
        workers = resources.enter_context(WorkerPool(scenario.workers)) if scenario.sets else None
        named = []
        for plan in scenario.sets:
            batches = SimpleNamespace(num_batches=plan.batches, last_count=plan.batches)
            if plan.kind != "held":
                batches = Streamed(plan)
                self.ordered += [batches] if batches.in_order else []
            runner = ValidationRunner(Evaluator(self, plan), batches, workers, recorder.add, None)
            named.append(NamedRunner(plan.name, runner, plan.due))
        suite = ValidationSuite(named, on_error=self.policy.on_error, pool=workers)
        resources.callback(suite.close)
        if scenario.function:
            alone = resources.enter_context(WorkerPool(1, name="validation-fn"))
            request = SimpleNamespace(model=self.model, on_span=recorder.add, hosts=Hosts())
            private = SimpleNamespace(adopt=self._adopt, model=self)
            runner = functions.FunctionRunner("fn", self._function, private, alone, request)
            suite.add_function(NamedRunner("fn", runner, lambda epoch: True), alone)
        return suite

    def _adopt(self, values: Any, attributes: Any) -> None:
        self._adopted = values

    def _function(self, _: Any) -> float:
        values = self._adopted
        compute()
        Broken.require(values is self._adopted, "a function is called twice at a time")
        return float(values.trainable[0] % 97)

    def _build_resumer(self, resources: contextlib.ExitStack) -> resume.Resumer | None:
        if self.scenario.checkpoints is None:
            return None
        policy = CheckpointPolicy("checkpoints", **self.scenario.checkpoints)
        return resources.enter_context(resume.Resumer(policy, self.model, {}, self.state))

    def _take_snapshot(self, ledger: Ledger, cursor: Cursor, epoch: int) -> Snapshot:
        values = self.state.read()
        snapshot = Snapshot(epoch, ledger.course.step, values, cursor.state())
        self.snapshots.add(snapshot)
        self.weights[epoch] = values.trainable[0]
        return snapshot


class _Metrics:
    """Reads the metric of the model."""

    by_python, live = False, frozenset()

    def __init__(self, state: State) -> None:
        self._state = state

    def __call__(self) -> dict[str, float]:
        return {"loss": float(self._state.metrics[0].value)}
