"""DepthwiseConv2D with our gradient of the filters: Keras's numbers, where it is used and where it is not."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import ExecutionPlan, Trainer
from overlap_train._training import kernels
from overlap_train._training.kernels import convolve_depthwise, find_fast_kernels, has_slow_gradient
from overlap_train.conv import library
from tests import networks

RNG = np.random.default_rng(8)
needs_library = pytest.mark.skipif(
    not library.is_available(), reason="needs the compiled convolution, and so a C++ compiler"
)


def numbers(*shape: int, dtype: str = "float32") -> tf.Tensor:
    return tf.constant(RNG.normal(size=shape), dtype)


def layer_of(channels: int = 64, **options) -> keras.layers.DepthwiseConv2D:
    layer = keras.layers.DepthwiseConv2D(**{"kernel_size": 3, **options})
    layer.build((None, 9, 7, channels) if layer.data_format == "channels_last" else (None, channels, 9, 7))
    return layer


@needs_library
@pytest.mark.parametrize(
    "options",
    [{}, {"use_bias": False}, {"activation": "relu"}, {"strides": 2}, {"trainable": False}],
    ids=str,
)
def test_a_layer_computes_what_it_did(options):
    layer = layer_of(**options)
    x = numbers(2, 9, 7, 64)
    results = []
    for call in (layer.call, convolve_depthwise(layer)):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = call(x)
            loss = tf.reduce_sum(tf.sin(y))
        gradients = tape.gradient(loss, [x, *(v.value for v in layer.variables)])
        results.append([y, *gradients])
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


class Own(keras.layers.DepthwiseConv2D):
    def call(self, inputs):
        return super().call(inputs) * 2


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (layer_of(), True),
        (layer_of(16, kernel_size=5), True),
        (layer_of(16, kernel_size=(3, 1)), True),
        (layer_of(32), False),  # for which TensorFlow has a kernel of its own
        (layer_of(8, kernel_size=5), False),
        (layer_of(depth_multiplier=2), False),
        (layer_of(dilation_rate=2), False),
        (layer_of(data_format="channels_first"), False),
        (layer_of(dtype="mixed_float16"), False),
        (layer_of(dtype="float64"), False),
        (keras.layers.DepthwiseConv2D(3), False),
        (keras.layers.Conv2D(64, 3), False),
        (Own(3), False),
    ],
)
def test_which_layers_gain(layer, expected):
    assert has_slow_gradient(layer) is expected


def test_none_gains_where_there_is_a_gpu(monkeypatch):
    layer = layer_of()
    monkeypatch.setattr(kernels.tf.config, "list_physical_devices", lambda kind: [object()])
    assert not has_slow_gradient(layer)


def network() -> keras.Model:
    keras.utils.set_random_seed(3)
    layers = [
        keras.Input((6, 6, 2)),
        keras.layers.Conv2D(64, 1),
        keras.layers.DepthwiseConv2D(3, padding="same", activation="relu"),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(networks.CLASSES),
    ]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.SGD(0.05), networks.crossentropy(), metrics=["accuracy"])
    return model


@needs_library
def test_training_is_that_of_keras():
    x = RNG.normal(size=(40, 6, 6, 2)).astype("float32")
    y = RNG.integers(0, networks.CLASSES, 40)
    expected, actual = network(), network()
    arguments = {"batch_size": 16, "epochs": 2, "verbose": 0, "validation_data": (x[:20], y[:20])}
    assert "depthwise convolution" in find_fast_kernels(actual, build=False).names
    plain = expected.fit(x, y, **arguments)
    history = Trainer(actual, execution=ExecutionPlan(kernels="fast")).fit(x, y, **arguments)
    networks.assert_same_history(history.history, plain.history, rtol=1e-4)
    networks.assert_same_weights(actual, expected, rtol=1e-3)
