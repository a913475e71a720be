"""A model that counts its calls: a validation of it changes it, so that it is validated live."""

import keras

from tests.networks import linear


class Counting(keras.layers.Layer):
    """Counts its calls, also in validation, and lets the count into the output."""

    def build(self, shape):
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False, name="calls")

    def call(self, x):
        self.calls.assign_add(1.0)
        return x * (1.0 + 0.01 * self.calls)


def counting():
    return linear(Counting)
