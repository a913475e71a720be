"""A validation that fails leaves the model as Keras leaves it, and raises what Keras raises."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import Trainer, ValidationPolicy
from overlap_train.errors import ValidationWorkerError
from tests.networks import arrays, crossentropy
from tests.pools import pooled
from tests.seeds import set_random_seed

X, Y = arrays(64)


class Failing(keras.Sequential):
    """Cannot be validated once it has been trained for so many steps."""

    def test_step(self, data):
        tf.debugging.assert_less(self.optimizer.iterations, tf.constant(8, tf.int64), "late")
        return super().test_step(data)


@pooled
def failing():
    set_random_seed(4)
    layers = [keras.layers.Dropout(0.3, seed=1), keras.layers.Dense(4)]
    model = Failing([keras.Input((X.shape[1],)), *layers])
    model.compile("adam", crossentropy())
    return model


@pytest.mark.parametrize("lag", [0, 1, 3])
@pytest.mark.parametrize("kind", ["arrays", "tf.data"])
def test_a_failed_validation_leaves_the_model_where_it_began(lag, kind):
    left = []
    for trained in (False, True):
        model = failing()
        policy = ValidationPolicy(max_lag=lag, overlap="always")
        fit = Trainer(model, validation=policy).fit if trained else model.fit
        x, y, size = X, Y, 16
        if kind == "tf.data":
            x, y, size = tf.data.Dataset.from_tensor_slices((X, Y)).batch(16), None, None
        with pytest.raises(tf.errors.InvalidArgumentError, match="late") as raised:
            fit(x, y, batch_size=size, epochs=9, validation_data=(X, Y), shuffle=False, verbose=0)
        assert isinstance(raised.value, ValidationWorkerError) == trained
        variables = [*model.trainable_variables, *model.optimizer.variables, *model.non_trainable_variables]
        left.append([np.asarray(variable) for variable in variables])
        assert model.history.epoch == [0]
    for actual, wanted in zip(left[1], left[0], strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=1e-6)
