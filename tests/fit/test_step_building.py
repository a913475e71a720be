"""A step is traced once for its model, with the operations that the plan and the machine allow."""

from __future__ import annotations

from types import SimpleNamespace

import keras
import pytest
import tensorflow as tf

from overlap_train import ExecutionPlan, Trainer
from overlap_train._fit import step_building
from overlap_train._fit.step_building import StepBuilder
from tests.fit.requests import request_of
from tests.networks import arrays, crossentropy
from tests.parallel.together import ThreadHost

kc = keras.callbacks
STRATEGY = tf.distribute.OneDeviceStrategy("CPU:0")


def plain(**options):
    model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(4)])
    model.compile("sgd", crossentropy(), metrics=["accuracy"], **options)
    return model


SHORT = {"long": False, "times": False}


class OwnStep(Trainer):
    def train_step(self, batch):
        return super().train_step(batch)


class Listens(kc.Callback):
    def on_train_batch_end(self, batch, logs=None):
        print(logs)


def builder(model, callbacks=(), *, kind=Trainer, strategy=None, data=None, total_steps=None, **options):
    trainer = kind(model, strategy=strategy, **options)
    arguments = {} if data is None else {"x": data, "y": None}
    return StepBuilder(request_of(trainer, **arguments), callbacks, total_steps)


@pytest.fixture
def searched(monkeypatch):
    """Notes what is searched for faster operations, and finds none."""
    found = []
    monkeypatch.setattr(step_building.tf.config, "list_logical_devices", lambda kind: [])
    monkeypatch.setattr(step_building.keras_training, "is_deterministic", lambda: False)
    monkeypatch.setattr(step_building, "find_kernels", lambda model, **options: found.append(options))
    return found


@pytest.mark.parametrize(
    ("plan", "compiled", "kind", "expected"),
    [
        (ExecutionPlan(), {}, Trainer, [SHORT]),
        (ExecutionPlan(kernels="fast"), {}, Trainer, [{"build": True}]),
        (ExecutionPlan(kernels="fast"), {}, OwnStep, [{"build": True}]),
        (ExecutionPlan(kernels="keras"), {}, Trainer, []),
        (ExecutionPlan(), {"run_eagerly": True}, Trainer, []),
        (ExecutionPlan(jit=True), {}, Trainer, []),
        (ExecutionPlan(), {"jit_compile": True}, Trainer, []),
        (ExecutionPlan(jit=False), {"jit_compile": True}, Trainer, [SHORT]),
        (ExecutionPlan(), {}, OwnStep, []),
    ],
)
def test_faster_operations_are_looked_for_where_they_are_no_risk(searched, plan, compiled, kind, expected):
    builder(plain(**compiled), kind=kind, execution=plan)
    assert searched == expected


@pytest.mark.parametrize(("fixed", "expected"), [(False, []), (True, [{}])])
def test_runs_that_must_repeat_have_keras_own_operations_or_those_that_the_model_chooses(
    searched, monkeypatch, fixed, expected
):
    monkeypatch.setattr(step_building.keras_training, "is_deterministic", lambda: True)
    monkeypatch.setattr(step_building, "ways_are_fixed", lambda: fixed)
    builder(plain(), total_steps=7)
    assert searched == expected, "whether the run is long must not matter"


def test_what_was_found_serves_the_model_until_it_is_compiled(searched):
    model = plain()
    for _ in range(2):
        builder(model)
    assert searched == [SHORT]
    model.compile("sgd", crossentropy())
    builder(model)
    assert searched == 2 * [SHORT]


def test_a_step_is_traced_once_for_model_and_step(searched):
    model = plain()
    first = builder(model).build_step()
    again = builder(model, [kc.TerminateOnNaN()]).build_step()
    assert again.traced is first.traced
    assert again.metrics is first.metrics
    other = builder(model, kind=OwnStep).build_step()
    assert other.traced is not first.traced
    model.compile("sgd", crossentropy())
    assert builder(model).build_step().traced is not first.traced


@pytest.mark.parametrize(
    ("callbacks", "halts", "carries_logs"),
    [([kc.History()], False, False), ([kc.TerminateOnNaN()], True, True), ([Listens()], False, True)],
)
def test_logs_are_carried_for_those_who_look_at_each_step(
    searched, model_traced, callbacks, halts, carries_logs
):
    step = builder(model_traced, callbacks).build_step()
    assert (step.halts, step.jit_compile) == (halts, False)
    assert (step.logs is not None) is carries_logs


@pytest.fixture(scope="module")
def model_traced():
    return plain()


@pytest.mark.parametrize(("eager", "expected"), [(False, True), (True, False)])
def test_xla_compiles_each_step_where_the_model_says_so(searched, eager, expected):
    model = plain(jit_compile=True)
    model.run_eagerly = eager
    assert builder(model).build_step().jit_compile is expected


def test_where_operations_run_one_by_one_nothing_is_traced(searched):
    assert builder(plain(run_eagerly=True)).build_step().traced is None


@pytest.fixture
def executed(monkeypatch):
    """Returns the task and the plan of the last loop that was asked for."""
    asked = {}

    def make_execution(task, plan, say):
        asked.update(task=task, plan=plan)
        return "loop", "pace"

    monkeypatch.setattr(step_building, "make_execution", make_execution)
    return asked


def build_loop(made, executed):
    assert made.build_loop(SimpleNamespace(), lambda text: None) == ("loop", "pace")
    return executed["task"], executed["plan"]


def test_the_loop_has_the_plan_and_the_steps_of_the_run(searched, executed):
    model, plan = plain(), ExecutionPlan(steps_per_call=3)
    task, asked = build_loop(builder(model, execution=plan, total_steps=7), executed)
    assert (task.model, task.total_steps) == (model, 7)
    assert (task.settings.stock, task.settings.shared) == (True, False)
    assert task.function == model.train_step
    assert asked is plan
    own = builder(model, kind=OwnStep)
    task, _ = build_loop(own, executed)
    assert task.function.__func__ is OwnStep.train_step


@pytest.mark.parametrize(
    ("hosts", "drops", "steps_per_call"), [(1, False, "auto"), (2, True, "auto"), (2, False, "auto")]
)
@pytest.mark.default_options
def test_dense_gradients_are_sent_in_calls_of_many_steps(searched, executed, hosts, drops, steps_per_call):
    with STRATEGY.scope():
        model = plain()
    data = tf.data.Dataset.from_tensor_slices(arrays()).batch(20, drop_remainder=drops)
    made = builder(model, strategy=STRATEGY, data=data)
    if hosts > 1:
        made._settings.replicas.hosts = ThreadHost(0, [None] * hosts, None)
    _, plan = build_loop(made, executed)
    assert plan.steps_per_call == steps_per_call


@pytest.mark.parametrize(
    ("total_steps", "long", "times"),
    [(None, False, False), (99, False, False), (100, True, False), (150, True, True)],
)
def test_convolutions_are_timed_in_a_run_that_is_long_enough(searched, total_steps, long, times):
    layers = [*(keras.layers.Conv2D(2, 3, padding="same") for _ in range(3)), keras.layers.Flatten()]
    model = keras.Sequential([keras.Input((2, 2, 1)), *layers])
    model.compile("sgd", "mse")
    data = tf.data.Dataset.from_tensor_slices((tf.zeros((4, 2, 2, 1)), tf.zeros((4, 8)))).batch(2)
    builder(model, data=data, total_steps=total_steps)
    assert searched == [{"long": long, "times": times}]
