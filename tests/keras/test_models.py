"""What a model is: whose its methods are, its layers, and what its graph does."""

from __future__ import annotations

import functools
from unittest import mock

import keras
import pytest
import tensorflow as tf

from overlap_train._keras import models
from tests.networks import arrays, sequential, subclassed

X, Y = arrays(20)


def test_the_code_of_a_method_is_found_behind_its_decorators():
    """The closure of `filter_traceback`, in which Keras's own lies."""

    def decorated(function):
        def around(self, *arguments):
            return function(self, *arguments)

        return around

    def fit(self):
        return helper(self)

    def helper(model): ...

    class Own(keras.Sequential):
        pass

    Own.fit = decorated(fit)
    codes = models.codes_of(Own(), "fit")
    assert {fit.__code__, Own.fit.__code__} < codes
    assert helper.__code__ not in codes
    assert [code.co_filename for code in codes if "/keras/" in code.co_filename]


def test_an_override_is_the_users_and_not_what_a_library_puts_into_keras_s_class(monkeypatch):
    class Middle(keras.Sequential):
        def fit(self, *arguments, **options):
            return super().fit(*arguments, **options)

    class Own(Middle):
        pass

    owners = {"fit": Middle, "evaluate": None, "no_such_method": None}
    assert {name: models.overriding_class(Own(), name) for name in owners} == owners
    assert models.overriding_class(sequential(), "fit") is None
    instance = sequential()
    instance.fit = lambda *arguments, **options: None
    assert models.overriding_class(instance, "fit") is type(instance)
    stock = models.KerasTrainer.fit
    monkeypatch.setattr(
        models.KerasTrainer, "fit", lambda *arguments, **options: stock(*arguments, **options)
    )
    assert models.overriding_class(sequential(), "fit") is None
    assert models.overriding_class(Own(), "fit") is Middle


@pytest.mark.parametrize("autospec", [False, True])
@pytest.mark.parametrize("name", ["fit", "evaluate", "make_test_function", "train_step"])
def test_what_a_mock_puts_into_keras_s_class_is_not_keras_s(name, autospec):
    """A mock with Keras's signature takes its module's name from it, too."""
    assert not models.is_replaced(sequential(), name)
    with mock.patch.object(keras.Model, name, autospec=autospec):
        assert models.is_replaced(sequential(), name)
        assert not models.is_stock_method(getattr(keras.Model, name))
    assert not models.is_replaced(sequential(), name)


def fake(module):
    return type("Fake", (), {"__module__": module})


STOCK = {
    "method": (lambda: sequential().train_step, True),
    "metric": (lambda: keras.metrics.Mean().update_state, True),
    "wrapped metric": (lambda: keras.metrics.MeanSquaredError().update_state, True),
    "function": (lambda: keras.losses.mean_squared_error, True),
    "class": (lambda: keras.Sequential, True),
    "trainer": (lambda: models.KerasTrainer, True),
    "own method": (lambda: subclassed().call, False),
    "own function": (lambda: lambda: None, False),
    "what wraps Keras's": (lambda: functools.wraps(keras.losses.mean_squared_error)(lambda *_: 0.0), False),
    "own class": (lambda: type("Own", (keras.Sequential,), {}), False),
    # Keras's tests are in its package, but are written as users write.
    "a test of Keras's": (lambda: fake("keras.src.trainers.trainer_test"), False),
    "another package": (lambda: fake("keras_hub.models"), False),
}


@pytest.mark.parametrize(("make", "stock"), STOCK.values(), ids=STOCK)
def test_what_is_keras_s_is_told_from_what_is_not(make, stock):
    """Methods and classes of Keras live in modules named keras...."""
    assert models.is_stock_method(make()) is stock


@pytest.mark.parametrize("name", ["fit", "evaluate"])
def test_the_cell_of_a_method_holds_what_it_runs(name):
    cell = models.method_cell(name)
    before = cell.cell_contents
    try:
        cell.cell_contents = lambda self, *args, **kwargs: "exchanged"
        assert getattr(sequential(), name)(X, Y) == "exchanged"
    finally:
        cell.cell_contents = before
    assert models.patched_by(sequential(), name) is None


def test_a_variable_has_a_handle_for_each_replica():
    """Variable.value, which under a strategy is not one variable but several."""
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        mirrored = keras.Variable([1.0, 2.0])
    assert models.variable_handles(mirrored) == [mirrored.value.values[0].handle]
    variable = keras.Variable(1.0)
    (handle,) = models.variable_handles(variable)
    assert handle is variable.value.handle
    variable.assign(5.0)
    assert float(tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32)) == 5.0


kl = keras.layers


def functional(outputs, kind=keras.Model, **options):
    inputs = keras.Input((4,), **options)
    return kind(inputs, outputs(inputs))


def overriding(name, kind=keras.Model):
    """Returns a class with a method of its own, which the tests do not call."""
    return type("Own", (kind,), {name: lambda self, *args, **kwargs: None})


def patched():
    model = functional(kl.Dense(2))
    model.call = lambda *args, **kwargs: args[0]
    return model


class Holds(keras.Model):
    """Has an attribute of the name under which a Sequential model keeps its graph."""

    def __init__(self):
        super().__init__()
        self._functional = functional(kl.Dense(2))

    def call(self, inputs):
        return self._functional(inputs) * 2.0


@pytest.mark.parametrize(
    ("make", "own"),
    [
        (lambda: functional(kl.Dense(2)), None),
        (lambda: functional(kl.Dense(2), overriding("compute_loss")), None),
        (lambda: keras.Sequential([keras.Input((4,)), kl.Dense(2)]), None),
        (lambda: functional(kl.Dense(2), overriding("call")), "call"),
        (lambda: functional(kl.Dense(2), overriding("_standardize_inputs")), "_standardize_inputs"),
        (lambda: overriding("__call__", keras.Sequential)([keras.Input((4,)), kl.Dense(2)]), "__call__"),
        (patched, "call"),
        (Holds, "call"),
    ],
    ids=["functional", "own-loss", "sequential", "call", "inputs", "sequence", "patched", "attribute"],
)
def test_code_of_the_users_own_in_a_call_is_named_and_has_no_graph(make, own):
    model = make()
    assert models.own_code_of(model) == own
    assert (models.stock_graph(model) is None) is (own is not None)
    unbuilt = keras.Sequential([kl.Dense(2)])
    assert models.stock_graph(unbuilt) is models.input_structure(unbuilt) is None
