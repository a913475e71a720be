"""A step is traced once for its model, with the operations that the plan and the machine allow."""

import functools

import keras
import pytest
import tensorflow as tf

from overlap_train import ExecutionPlan, Trainer
from overlap_train._fit import step_building
from overlap_train._fit.step_building import StepBuilder
from tests.fit.requests import request_of
from tests.networks import crossentropy, linear
from tests.whole_fits.test_own_methods import OwnSteps

kc = keras.callbacks
STRATEGY = tf.distribute.OneDeviceStrategy("CPU:0")


plain = functools.partial(linear, metrics=["accuracy"])


LONG = {"long": True, "times": True}


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
    monkeypatch.setattr(
        step_building, "find_kernels", lambda model, **options: found.append(model and options)
    )
    return found


@pytest.mark.parametrize(
    ("plan", "compiled", "kind", "expected"),
    [
        (ExecutionPlan(), {}, Trainer, [LONG]),
        (ExecutionPlan(kernels="fast"), {}, Trainer, [{"build": True}]),
        (ExecutionPlan(kernels="fast"), {}, OwnSteps, [{"build": True}]),
        (ExecutionPlan(kernels="keras"), {}, Trainer, []),
        (ExecutionPlan(), {"run_eagerly": True}, Trainer, []),
        (ExecutionPlan(jit=True), {}, Trainer, []),
        (ExecutionPlan(), {"jit_compile": True}, Trainer, []),
        (ExecutionPlan(jit=False), {"jit_compile": True}, Trainer, [LONG]),
        (ExecutionPlan(), {}, OwnSteps, []),
    ],
)
def test_faster_operations_are_looked_for_where_they_are_no_risk(searched, plan, compiled, kind, expected):
    builder(plain(**compiled), kind=kind, execution=plan, total_steps=1000)
    assert searched == expected


@pytest.mark.parametrize(("fixed", "expected"), [(False, []), (True, [{}])])
def test_runs_that_must_repeat_have_keras_own_operations_or_those_that_the_model_chooses(
    searched, monkeypatch, fixed, expected
):
    monkeypatch.setattr(step_building.keras_training, "is_deterministic", lambda: True)
    monkeypatch.setattr(step_building, "ways_are_fixed", lambda: fixed)
    builder(plain(), total_steps=7)
    assert searched == expected, "whether the run is long must not matter"


def test_a_step_is_traced_once_for_model_and_step(searched):
    model = plain()
    first = builder(model).build_step()
    again = builder(model, [kc.TerminateOnNaN()]).build_step()
    assert again.traced is first.traced
    assert again.metrics is first.metrics
    other = builder(model, kind=OwnSteps).build_step()
    assert other.traced is not first.traced
    model.compile("sgd", crossentropy())
    assert builder(model).build_step().traced is not first.traced


@pytest.mark.parametrize(("eager", "expected"), [(False, True), (True, False)])
def test_xla_compiles_each_step_where_the_model_says_so(searched, eager, expected):
    model = plain(jit_compile=True)
    model.run_eagerly = eager
    assert builder(model).build_step().jit_compile is expected


@pytest.mark.parametrize(
    ("total_steps", "expected"),
    [(None, []), (99, []), (100, [{"long": True, "times": False}]), (150, [{"long": True, "times": True}])],
)
def test_convolutions_are_timed_in_a_run_that_is_long_enough(searched, total_steps, expected):
    layers = [*(keras.layers.Conv2D(2, 3, padding="same") for _ in range(3)), keras.layers.Flatten()]
    model = keras.Sequential([keras.Input((2, 2, 1)), *layers])
    model.compile("sgd", "mse")
    data = tf.data.Dataset.from_tensor_slices((tf.zeros((4, 2, 2, 1)), tf.zeros((4, 8)))).batch(2)
    builder(model, data=data, total_steps=total_steps)
    assert searched == expected
