"""Two logical CPUs and a strategy over them, for a process of its own: TensorFlow fixes its devices early.

One strategy serves all cases of a process: several MirroredStrategies in one process use the same keys for
their collective operations.
"""

from __future__ import annotations

import keras
import tensorflow as tf

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
STRATEGY = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def on_two(build):
    """Returns a function that makes a model in the strategy's scope."""

    def make(*arguments) -> keras.Model:
        with STRATEGY.scope():
            return build(*arguments)

    return make
