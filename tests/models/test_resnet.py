"""The residual network of the benchmark: batch statistics, and shapes that fit its data."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from overlap_train.models.resnet import resnet


@pytest.mark.parametrize(
    ("options", "shape", "classes"),
    [
        ({}, (28, 28, 1), 10),
        ({"input_shape": (32, 32, 3), "widths": (8, 16), "num_classes": 2}, (32, 32, 3), 2),
    ],
)
def test_logits_have_one_column_for_each_class(options, shape, classes):
    assert resnet(**options)(np.zeros((3, *shape), np.float32)).shape == (3, classes)


def test_resnet_carries_batch_statistics_and_halves_the_resolution():
    network = resnet(widths=(4, 8))
    assert any(isinstance(layer, keras.layers.BatchNormalization) for layer in network.layers)
    pooling = next(lay for lay in network.layers if isinstance(lay, keras.layers.GlobalAveragePooling2D))
    assert pooling.input.shape == (None, 14, 14, 8)
