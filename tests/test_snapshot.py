"""Contract C1: a snapshot is taken without a copy, nothing changes it afterwards, it can be restored."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train.snapshot import ModelState
from tests.models import CLASSES, FEATURES, arrays, crossentropy, subclassed

X, Y = arrays(32)
OPTIMIZERS = ["SGD", "Adam", "AdamW", "RMSprop", "Lion", "Adafactor"]
CASES = [(name, jit) for name in OPTIMIZERS for jit in (False, True)]


def model_of(optimizer, jit=False):
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [keras.Input((FEATURES,)), keras.layers.Dropout(0.5), keras.layers.Dense(CLASSES)]
    )
    model.compile(optimizer, crossentropy(), jit_compile=jit)
    return model


def compiled_steps(model):
    """Returns a function that makes a training step in one compiled call, and is traced already."""
    x, y = tf.constant(X), tf.constant(Y)

    @tf.function(autograph=False, jit_compile=bool(model.jit_compile))
    def steps():
        model.train_step((x, y))

    steps()
    return steps


def address(tensor):
    return np.asarray(memoryview(tensor)).__array_interface__["data"][0]


def copies(values):
    return [value.numpy().copy() for value in values.flat()]


def assert_equal(values, expected):
    for value, copy in zip(values.flat(), expected, strict=True):
        np.testing.assert_array_equal(value.numpy(), copy)


@pytest.mark.parametrize(("name", "jit"), CASES, ids=[f"{n}-{'xla' if j else 'graph'}" for n, j in CASES])
def test_a_snapshot_shares_the_buffers_and_no_step_changes_it(name, jit):
    model = model_of(getattr(keras.optimizers, name)(), jit)
    steps = compiled_steps(model)
    state = ModelState(model)
    snapshot = state.read()
    again = state.read()
    big = [i for i, v in enumerate(snapshot.flat()) if v.shape.rank]
    assert big
    assert all(address(snapshot.flat()[i]) == address(again.flat()[i]) for i in big), "a read made a copy"
    expected = copies(snapshot)
    for _ in range(3):
        steps()
    assert_equal(snapshot, expected)
    now = state.read()
    assert any(np.any(a != b) for a, b in zip(copies(now), expected, strict=True))
    state.restore(snapshot)
    assert_equal(state.read(), expected)
    assert all(address(state.read().flat()[i]) == address(snapshot.flat()[i]) for i in big), (
        "a restore copied"
    )
    steps()
    assert_equal(snapshot, expected)


def test_training_on_from_a_restored_snapshot_repeats_itself():
    """Seeds of the dropout, momenta and the iteration count are part of it."""
    model = model_of(keras.optimizers.Adam())
    steps = compiled_steps(model)
    state = ModelState(model)
    snapshot = state.read()
    steps()
    first = copies(state.read())
    state.restore(snapshot)
    steps()
    assert_equal(state.read(), first)


def test_every_variable_is_in_one_group_and_seeds_are_among_them():
    model = subclassed()
    model.fit(X, Y, verbose=0)
    state = ModelState(model)
    assert len(state.read().trainable) == len(model.trainable_variables)
    assert {id(v) for v in state.non_trainable} == {id(v) for v in model.non_trainable_variables}
    assert any("seed" in v.path for v in state.non_trainable)
    assert len(state.read().flat()) == len(
        {id(v) for v in (*model.variables, *model.metrics_variables, *model.optimizer.variables)}
    )


def test_an_embedding_with_sgd_is_safe_though_its_updates_scatter():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,), dtype="int32"), keras.layers.Embedding(50, 4)])
    model.add(keras.layers.Flatten())
    model.add(keras.layers.Dense(CLASSES))
    model.compile(keras.optimizers.SGD(0.5), crossentropy())
    x, y = tf.constant([[1, 2, 3], [4, 5, 1]]), tf.constant([0, 1])

    @tf.function(autograph=False)
    def step():
        model.train_step((x, y))

    step()
    state = ModelState(model)
    snapshot = state.read()
    expected = copies(snapshot)
    for _ in range(4):
        step()
    assert np.any(model.layers[0].embeddings.numpy() != expected[0])
    assert_equal(snapshot, expected)
    state.restore(snapshot)
    step()
    assert_equal(snapshot, expected)


def changes(value, new, dtype="float32"):
    """Returns the names of what has changed after one weight went from `value` to `new`."""

    class Layer(keras.layers.Dense):
        def build(self, shape):
            super().build(shape)
            self.extra = self.add_weight(
                shape=(2,), dtype=dtype, initializer="zeros", trainable=False, name="extra", autocast=False
            )

    layer = Layer(1)
    model = keras.Sequential([keras.Input((1,)), layer])
    model.compile("sgd", "mse")
    model.optimizer.build(model.trainable_variables)
    layer.extra.assign(np.asarray(value, dtype))
    state = ModelState(model)
    snapshot = state.read()
    layer.extra.assign(np.asarray(new, dtype))
    return [variable.name for variable in state.changed(snapshot)]


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int32", "int64", "uint8", "bool"])
def test_a_change_is_seen_in_every_dtype_and_equal_bits_are_none(dtype):
    assert changes([1, 0], [1, 1], dtype) == ["extra"]
    assert changes([1, 0], [1, 0], dtype) == []


def test_nan_equals_itself_and_minus_zero_is_a_change():
    assert changes([np.nan, 1], [np.nan, 1]) == []
    assert changes([np.nan, 1], [np.nan, 2]) == ["extra"]
    assert changes([0.0, 1], [-0.0, 1]) == ["extra"]


def test_a_change_of_the_learning_rate_counts_and_one_of_the_metrics_does_not():
    model = model_of(keras.optimizers.Adam(0.1))
    model.fit(X, Y, verbose=0)
    state = ModelState(model)
    snapshot = state.read()
    model.reset_metrics()
    assert state.changed(snapshot) == []
    model.optimizer.learning_rate = 0.01
    assert [v.path for v in state.changed(snapshot)] == [model.optimizer.learning_rate.path]


def test_a_model_without_an_optimizer_has_a_state_too():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(optimizer=None, loss="mse")
    state = ModelState(model)
    snapshot = state.read()
    assert snapshot.optimizer == ()
    model.layers[0].kernel.assign([[5.0]])
    state.restore(snapshot)
    assert state.changed(snapshot) == []
