"""What optimizers keep and do besides."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train._keras import optimizers as keras_optimizers
from tests.networks import arrays, sequential


@pytest.mark.parametrize("scaled", [False, True])
def test_the_sum_over_replicas_is_spared_where_there_is_one(scaled):
    """Optimizer._all_reduce_sum_gradients, LossScaleOptimizer.inner_optimizer."""
    optimizer = keras.optimizers.SGD(0.5)
    stock = optimizer._all_reduce_sum_gradients
    outer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=1.0) if scaled else optimizer
    variable = keras.Variable([1.0, 2.0])
    outer.build([variable])
    with keras_optimizers.without_all_reduce(outer):
        inside = optimizer._all_reduce_sum_gradients
        outer.apply_gradients([(tf.constant([2.0, 2.0]), variable)])
    assert inside != stock
    assert optimizer._all_reduce_sum_gradients == stock
    np.testing.assert_allclose(variable.numpy(), [0.0, 1.0])
    with keras_optimizers.without_all_reduce(None):
        pass


def test_adam_keeps_its_moments_by_variable():
    """Optimizer._get_variable_index, Adam._momentums, Adam._velocities."""
    optimizer = keras.optimizers.Adam()
    variables = [keras.Variable([1.0, 2.0]), keras.Variable([3.0])]
    optimizer.build(variables)
    optimizer.apply_gradients([(tf.constant([1.0, 2.0]), variables[0]), (tf.constant([3.0]), variables[1])])
    m, v = keras_optimizers.adam_moments(optimizer, variables[1].value)
    np.testing.assert_allclose(m, [0.3], rtol=1e-5)
    np.testing.assert_allclose(v, [0.009], rtol=1e-5)


def test_an_optimizer_is_built_as_its_first_update_would():
    """Optimizer.build within its name scope: its variables are named as by Keras."""
    ours, theirs = sequential("adam"), sequential("adam")
    keras_optimizers.build_optimizer(ours)
    theirs.fit(*arrays(20), verbose=0)
    assert ours.optimizer.built
    paths = [[variable.path.split("/", 1)[1] for variable in m.optimizer.variables] for m in (ours, theirs)]
    assert paths[0] == paths[1]
    unbuilt = keras.Sequential([keras.layers.Dense(1)])
    unbuilt.compile("adam", "mse")
    keras_optimizers.build_optimizer(unbuilt)
    assert not unbuilt.optimizer.built
