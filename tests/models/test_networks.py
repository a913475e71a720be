"""The small networks of the benchmarks: one logit for each class, the sizes measured before, their input."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from overlap_train.models.mlp import mlp
from overlap_train.models.mnist_cnn import mnist_cnn
from overlap_train.models.resnet import resnet
from overlap_train.models.text_lstm import text_lstm

PERCEPTRON = {"features": 5, "num_classes": 3}


@pytest.mark.parametrize(
    ("network", "x", "classes", "weights"),
    [
        (lambda: mlp(hidden=(4,), **PERCEPTRON), np.zeros((3, 5)), 3, 5 * 4 + 4 + 4 * 3 + 3),
        (lambda: mlp(hidden=(), **PERCEPTRON), np.zeros((3, 5)), 3, 5 * 3 + 3),
        (mnist_cnn, np.zeros((3, 28, 28, 1)), 10, 34_826),
        (lambda: mnist_cnn(from_uint8=True), np.zeros((3, 28, 28, 1), "uint8"), 10, 34_826),
        (resnet, np.zeros((3, 28, 28, 1)), 10, None),
        (
            lambda: resnet(input_shape=(32, 32, 3), widths=(8, 16), num_classes=2),
            *(np.zeros((3, 32, 32, 3)), 2, None),
        ),
        (lambda: text_lstm(vocabulary_size=9, sequence_length=6), np.ones((3, 6), "int32"), 2, None),
    ],
    ids=["mlp", "linear", "cnn", "cnn of bytes", "resnet", "small resnet", "lstm"],
)
def test_logits_have_one_column_for_each_class(network, x, classes, weights):
    network = network()
    assert network(x.astype("float32") if x.dtype == float else x).shape == (3, classes)
    assert weights in (None, network.count_params())


def test_pixels_are_scaled_inside_the_model_exactly_once():
    pixels = np.random.default_rng(0).integers(0, 256, (2, 28, 28, 1), np.uint8)
    keras.utils.set_random_seed(0)
    inside = mnist_cnn(from_uint8=True)(pixels)
    keras.utils.set_random_seed(0)
    outside = mnist_cnn()(pixels.astype(np.float32) / 255)
    np.testing.assert_allclose(inside, outside, rtol=1e-4, atol=1e-5)


def test_resnet_carries_batch_statistics_and_halves_the_resolution():
    network = resnet(widths=(4, 8))
    assert any(isinstance(layer, keras.layers.BatchNormalization) for layer in network.layers)
    pooling = next(lay for lay in network.layers if isinstance(lay, keras.layers.GlobalAveragePooling2D))
    assert pooling.input.shape == (None, 14, 14, 8)


def test_padding_does_not_change_what_the_text_says():
    network = text_lstm(vocabulary_size=9, sequence_length=6)
    short = np.array([[1, 2, 3, 0, 0, 0]], np.int32)
    unpadded = text_lstm(vocabulary_size=9, sequence_length=3)
    unpadded.set_weights(network.get_weights())
    np.testing.assert_allclose(network(short), unpadded(short[:, :3]), rtol=1e-5, atol=1e-6)
