"""What keeps a batch from being split is found, and named, before a step is made."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import ExecutionPlan, Trainer
from overlap_train._training import splitting
from overlap_train._training.splitting import find_obstacle
from tests import networks


def spec_of(*arrays):
    return keras.tree.map_structure(lambda a: tf.TensorSpec([None, *a.shape[1:]], a.dtype), arrays)


def test_batch_normalization_is_an_obstacle():
    model = networks.subclassed()
    x, y = networks.arrays()
    model.evaluate(x, y, verbose=0)
    assert "layer" in find_obstacle(model, spec_of(x, y)) or "Awkward" in find_obstacle(model, spec_of(x, y))
    assert "changes state" in find_obstacle(model, spec_of(x, y), trusted=True)


def sequential_with(*layers):
    model = keras.Sequential([keras.Input((12,)), *layers, keras.layers.Dense(networks.CLASSES)])
    model.compile("sgd", networks.crossentropy())
    model.optimizer.build(model.trainable_variables)
    return model


def _minus_mean(x):
    return x - keras.ops.mean(x, axis=0)


@pytest.mark.parametrize("activation", ["gelu", keras.ops.silu, tf.nn.relu, keras.layers.LeakyReLU()])
def test_known_activations_are_no_obstacle(activation):
    x, y = networks.arrays()
    layer = keras.layers.Dense(4, activation=activation)
    assert find_obstacle(sequential_with(layer), spec_of(x, y)) is None


def test_inputs_that_cannot_be_divided_by_rows_are_an_obstacle():
    def compiled(inputs, output):
        model = keras.Model(inputs, output)
        model.compile("sgd", "mse")
        model.optimizer.build(model.trainable_variables)
        return model

    labels = tf.TensorSpec([None, 3])
    sparse = keras.Input((6,), sparse=True)
    spec = (tf.SparseTensorSpec([None, 6]), labels)
    assert "sparse" in find_obstacle(compiled(sparse, keras.layers.Dense(3)(sparse)), spec)
    inputs = [keras.Input((6,)), keras.Input((6,))]
    model = compiled(inputs, keras.layers.Dense(3)(keras.layers.Add()(inputs)))
    spec = ((tf.TensorSpec([None, 6]), tf.TensorSpec([1, 6])), labels)
    assert "number of rows" in find_obstacle(model, spec)


@pytest.mark.parametrize(
    ("layer", "trusted", "says"),
    [
        (lambda: keras.layers.GaussianNoise(0.1), True, "changes state"),
        (lambda: keras.layers.GaussianNoise(0.1), False, "GaussianNoise"),
        (lambda: keras.layers.BatchNormalization(), True, "changes state"),
        (lambda: keras.layers.Dense(4, activity_regularizer="l2"), True, "add_loss"),
        (lambda: keras.layers.Lambda(lambda x: x - keras.ops.mean(x, axis=0)), False, "Lambda"),
        (lambda: keras.layers.Softmax(axis=0), False, "axis 0"),
        (lambda: keras.layers.Softmax(axis=-2), False, "axis -2"),
        (lambda: keras.layers.UnitNormalization(axis=[-2]), False, r"axis [-2]"),
        (lambda: keras.layers.Dense(4, activation=_minus_mean), False, "the activation of Dense"),
        (lambda: keras.layers.Activation(_minus_mean), False, "the activation of Activation"),
    ],
)
def test_what_mixes_rows_or_has_state_is_an_obstacle(layer, trusted, says):
    x, y = networks.arrays()
    assert says in find_obstacle(sequential_with(layer()), spec_of(x, y), trusted=trusted)


def test_own_train_step_is_an_obstacle():
    class Own(keras.Sequential):
        def train_step(self, data):
            return super().train_step(data)

    model = Own([keras.Input((12,)), keras.layers.Dense(networks.CLASSES)])
    model.compile("sgd", networks.crossentropy())
    x, y = networks.arrays()
    with pytest.raises(ValueError, match=r"batch_splits=2 is not possible.*train_step"):
        Trainer(model, execution=ExecutionPlan(batch_splits=2)).fit(x, y, verbose=0)


def test_looking_for_obstacles_changes_nothing():
    model = networks.sequential()
    x, y = networks.arrays()
    model.evaluate(x, y, verbose=0)
    before = [v.numpy() for v in model.variables + model.metrics_variables]
    assert find_obstacle(model, spec_of(x, y)) is None
    for value, variable in zip(before, model.variables + model.metrics_variables, strict=True):
        np.testing.assert_array_equal(value, variable.numpy())
    assert not any("call" in vars(layer) for layer in model.layers)


def _attending():
    x = keras.Input((5, 6))
    y = keras.layers.MultiHeadAttention(2, 3, dropout=0.1)(x, x)
    return keras.Model(x, keras.layers.Dense(networks.CLASSES)(keras.layers.GlobalAveragePooling1D()(x + y)))


def _recurrent(**options):
    embedding = keras.layers.Embedding(9, 4, mask_zero=options.pop("mask_zero", False))
    batch = options.pop("batch", None)
    entry = keras.Input(batch_shape=(batch, 5), dtype="int64")
    head = keras.layers.Dense(networks.CLASSES)
    return keras.Sequential([entry, embedding, keras.layers.LSTM(3, **options), head])


@pytest.mark.parametrize(
    ("make", "spec", "tells"),
    [
        (_attending, tf.TensorSpec([None, 5, 6]), True),
        (_recurrent, tf.TensorSpec([8, 5], tf.int64), True),
        (lambda: _recurrent(dropout=0.1), tf.TensorSpec([8, 5], tf.int64), False),
        (lambda: _recurrent(mask_zero=True), tf.TensorSpec([8, 5], tf.int64), False),
        (lambda: _recurrent(stateful=True, batch=8), tf.TensorSpec([8, 5], tf.int64), False),
        (lambda: _recurrent(batch=8), tf.TensorSpec([8, 5], tf.int64), False),
    ],
    ids=["attention", "lstm", "dropout", "mask", "stateful", "fixed size"],
)
def test_models_of_symbolic_layers_tell_without_a_trace_what_a_trace_would(monkeypatch, make, spec, tells):
    model = make()
    model.compile("sgd", networks.crossentropy())
    model.optimizer.build(model.trainable_variables)
    specs = (spec, tf.TensorSpec([spec.shape[0]], tf.int64))
    assert splitting._is_plain(model, specs) == tells
    if tells:
        assert splitting._Probe(model).obstacle(specs) is None
