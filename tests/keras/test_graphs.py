"""Whether a call of a functional model does what its graph says, and what passes between its layers."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

from overlap_train._keras import models

kl = keras.layers


def functional(outputs, kind=keras.Model, **options):
    inputs = keras.Input((4,), **options)
    return kind(inputs, outputs(inputs))


class OwnCall(keras.Model):
    def call(self, inputs, training=None):
        return super().call(inputs, training=training) + 1.0


class OwnInputs(keras.Model):
    def _standardize_inputs(self, inputs):
        return super()._standardize_inputs(inputs)


class OwnSequence(keras.Sequential):
    def __call__(self, *args, **kwargs):
        return super().__call__(*args, **kwargs)


class OnlyItsLoss(keras.Model):
    def compute_loss(self, *args, **kwargs):
        return super().compute_loss(*args, **kwargs)


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
        (lambda: functional(kl.Dense(2), OnlyItsLoss), None),
        (lambda: keras.Sequential([keras.Input((4,)), kl.Dense(2)]), None),
        (lambda: functional(kl.Dense(2), OwnCall), "call"),
        (lambda: functional(kl.Dense(2), OwnInputs), "_standardize_inputs"),
        (lambda: OwnSequence([keras.Input((4,)), kl.Dense(2)]), "__call__"),
        (patched, "call"),
        (Holds, "call"),
    ],
    ids=["functional", "own-loss", "sequential", "call", "inputs", "sequence", "patched", "attribute"],
)
def test_code_of_the_users_own_in_a_call_is_named(make, own):
    model = make()
    assert models.own_code_of(model) == own
    assert (models.stock_graph(model) is None) is (own is not None)


def test_a_sequential_model_that_is_not_built_has_no_graph():
    model = keras.Sequential([kl.Dense(2)])
    assert models.stock_graph(model) is None
    assert models.input_structure(model) is None


def test_a_subclassed_model_has_no_graph():
    class Twice(keras.Model):
        def call(self, x):
            return x * 2.0

    assert models.stock_graph(Twice()) is None


def test_nodes_come_in_the_order_of_the_calls():
    model = functional(lambda x: kl.Dense(1, name="last")(kl.ReLU(name="first")(x)))
    assert [node.operation.name for node in models.graph_nodes(model)] == ["first", "last"]


def inner(training):
    inside = functional(lambda x: kl.Dropout(0.5)(x, training=training))
    return functional(lambda x: kl.Dense(2)(inside(x)))


@pytest.mark.parametrize(
    ("make", "trains"),
    [
        (lambda: functional(kl.Dropout(0.5)), False),
        (lambda: functional(lambda x: kl.Dropout(0.5)(x, training=False)), False),
        (lambda: functional(lambda x: kl.Dropout(0.5)(x, training=True)), True),
        (lambda: inner(None), False),
        (lambda: inner(True), True),
        (lambda: keras.Sequential([keras.Input((4,)), inner(True)]), True),
    ],
    ids=["unsaid", "false", "true", "inner-unsaid", "inner-true", "in-sequence"],
)
def test_a_layer_that_is_called_for_training_is_found(make, trains):
    assert models.trains_by_itself(make()) is trains


class Masks(kl.Layer):
    """Gives a mask to what it returns, as `Masking` does."""

    def __init__(self):
        super().__init__()
        self.supports_masking = True

    def call(self, x):
        return x * 1.0

    def compute_mask(self, x, previous=None):
        return keras.ops.not_equal(x[..., 0], 0.0)


@pytest.mark.parametrize(
    ("model", "more"),
    [
        (lambda: functional(kl.Dense(2)), False),
        (lambda: functional(lambda x: kl.Dense(2)(Masks()(x))), True),
        (lambda: functional(kl.CategoryEncoding(4, sparse=True)), True),
        (lambda: functional(kl.Dense(2), sparse=True), True),
    ],
    ids=["arrays", "mask", "sparse-within", "sparse-input"],
)
def test_what_is_more_than_an_array_between_two_layers_is_found(model, more):
    assert models.carries_more_than_arrays(model()) is more


@pytest.mark.parametrize("nest", [lambda a: [a], lambda a: (a,), lambda a: {"a": a}, lambda a: [[a]]])
def test_outputs_are_nested_as_a_call_nests_them(nest):
    model = functional(lambda x: nest(kl.Dense(2)(x)))
    keras.tree.assert_same_structure(models.output_structure(model), model(tf.ones((1, 4))))


def test_an_optional_input_is_known():
    left, right = keras.Input((4,)), keras.Input((4,), optional=True)
    assert [models.is_optional(x) for x in (left, right)] == [False, True]
    assert not models.is_optional(keras.KerasTensor((None, 4)))
