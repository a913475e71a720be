"""A trace names what a function reads and writes, and runs on other variables in their place."""

import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train._inspection.traced import TracedFunction, private_handles
from overlap_train._inspection.traces import Traces
from tests.networks import arrays, sequential

X, Y = arrays(40)


def names(variables):
    return sorted(variable.name for variable in variables)


def test_variables_of_closures_generators_and_optimizers_are_named_and_told_apart_by_writing():
    read, written = keras.Variable(2.0, name="read"), tf.Variable(1.0, name="written")
    generator = tf.random.Generator.from_seed(1)

    def step(x):
        written.assign_add(read.value)
        return x * written + generator.uniform(())

    traced = TracedFunction(step, tf.TensorSpec([]))
    assert names(traced.variables) == ["StateVar", "read", "written"]
    assert names(traced.written) == ["StateVar", "written"]
    assert traced.effects == ()


class Growing(keras.Model):
    """Makes variables in three ways when it is first called."""

    def __init__(self):
        super().__init__()
        self.inner = keras.layers.Dense(3)
        self.raw = None

    def call(self, x):
        if self.raw is None:
            self.raw = tf.Variable(lambda: tf.fill([3], 2.0), name="raw")
        return self.inner(x) * self.raw


def test_a_function_that_makes_variables_is_traced_again():
    model = Growing()
    optimizer = keras.optimizers.Adam()
    times = []

    def step(x):
        times.append(x)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x))
        weights = [*model.inner.trainable_weights, model.raw]
        optimizer.apply(tape.gradient(loss, weights)[:2], weights[:2])
        return loss

    traced = TracedFunction(step, tf.TensorSpec([4, 2]))
    assert len(times) == 2, "it may compute otherwise once it has them"
    kernel = model.inner.kernel.numpy()
    assert np.any(kernel), "as its initializer gives it"
    assert float(traced(tf.ones([4, 2]))) == pytest.approx(8 * kernel.sum(), rel=1e-5)
    assert int(optimizer.iterations) == 1
    assert "growing/kernel" in names(traced.written)
    assert "raw" in names(traced.variables)


def evaluate(traced, variables, values, x):
    @tf.function(autograph=False)
    def run(values, x):
        handles = private_handles(variables, values)
        result = traced.on(handles, x)
        left = [tf.raw_ops.ReadVariableOp(resource=handles[id(v.handle)], dtype=v.dtype) for v in variables]
        return result, left

    return run(values, x)


def test_on_private_variables_nothing_of_the_live_ones_is_read_or_written():
    weight, count = tf.Variable(10.0), tf.Variable(0.0)

    def step(x):
        count.assign_add(1.0)
        return x * weight + count

    traced = TracedFunction(step, tf.TensorSpec([]))
    values = [tf.constant(5.0 if variable.written else 3.0) for variable in traced.variables]
    result, left = evaluate(traced, traced.variables, values, tf.constant(2.0))
    assert float(result) == 2.0 * 3.0 + 6.0
    assert sorted(map(float, left)) == [3.0, 6.0]
    assert (float(weight), float(count)) == (10.0, 0.0)
    assert float(traced(tf.constant(2.0))) == 21.0
    assert float(count) == 1.0


@pytest.mark.nightly
def test_traces_are_neither_saved_nor_copied_with_a_model(tmp_path):
    model = sequential()
    model.fit(X, Y, verbose=0)
    Traces.of(model, "train").get("key", threading.Lock)
    model.save(tmp_path / "m.keras")
    copy = keras.saving.load_model(tmp_path / "m.keras")
    assert "key" not in Traces.of(copy, "train")
