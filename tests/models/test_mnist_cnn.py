"""The convolutional network of the benchmark: its size, and where its pixels are scaled."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from overlap_train.models.mnist_cnn import mnist_cnn


@pytest.mark.parametrize("from_uint8", [False, True])
def test_logits_have_one_column_for_each_class(from_uint8):
    pixels = np.zeros((3, 28, 28, 1), np.uint8 if from_uint8 else np.float32)
    assert mnist_cnn(from_uint8=from_uint8)(pixels).shape == (3, 10)


def test_cnn_has_as_many_weights_as_the_one_measured_before():
    assert mnist_cnn().count_params() == 34_826
    assert mnist_cnn(from_uint8=True).count_params() == 34_826


def test_pixels_are_scaled_inside_the_model_exactly_once():
    pixels = np.random.default_rng(0).integers(0, 256, (2, 28, 28, 1), np.uint8)
    keras.utils.set_random_seed(0)
    inside = mnist_cnn(from_uint8=True)(pixels)
    keras.utils.set_random_seed(0)
    outside = mnist_cnn()(pixels.astype(np.float32) / 255)
    np.testing.assert_allclose(inside, outside, rtol=1e-4, atol=1e-5)
