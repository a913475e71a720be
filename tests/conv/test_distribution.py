"""MirroredStrategy over two logical CPUs, in a process of its own: TensorFlow fixes its devices early."""

from __future__ import annotations

import pytest

from tests import interpreters

pytestmark = pytest.mark.usefixtures("native")

PROGRAM = """
import numpy as np
import tensorflow as tf

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
from overlap_train.conv import tiled_conv2d

generator = np.random.default_rng(0)
images = generator.standard_normal((8, 14, 11, 5)).astype("float32")
filters = generator.standard_normal((3, 3, 5, 16)).astype("float32")
devices = []


def gradients(x, variable):
    with tf.GradientTape() as tape:
        y = tiled_conv2d(x, variable, activation="relu", algorithm="winograd")
        devices.append(y.device)
        loss = tf.reduce_sum(y ** 2) / 8
    return tape.gradient(loss, variable)


strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    mirrored = tf.Variable(filters)
halves = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices(images).batch(8))


@tf.function
def step(x):
    per_replica = strategy.run(gradients, (x, mirrored))
    return strategy.reduce("SUM", per_replica, axis=None)


got = step(next(iter(halves)))
want = gradients(tf.constant(images), tf.Variable(filters))
print("error", float(tf.reduce_max(tf.abs(got - want)) / tf.reduce_max(tf.abs(want))))
np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * float(tf.reduce_max(tf.abs(want))))
placed = {tf.DeviceSpec.from_string(d).device_index for d in devices[:2]}
assert placed == {0, 1}, devices
graph = step.get_concrete_function(next(iter(halves))).graph
operations = [o for o in graph.get_operations() if o.type == "OverlapTiledConv2DBackpropFilter"]
assert {tf.DeviceSpec.from_string(o.device).device_index for o in operations} == {0, 1}, operations
"""


def test_two_replicas_give_the_gradients_of_one() -> None:
    result = interpreters.run(["-c", PROGRAM], check=True)
    print(result.stdout)  # shown by pytest -rP
