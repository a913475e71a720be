"""One convolution as a key: its output, its operations, and what can compute it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tensorflow as tf

from overlap_train.conv.shapes import MATMUL, STOCK, ConvKey, Timing

KEY = ConvKey("forward", "float32", (2, 9, 7, 3), (3, 3, 3, 4), (1, 1), "SAME")


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_output_shape_is_tensorflows(padding: str, stride: int) -> None:
    for size in (5, 6, 7):
        key = ConvKey("forward", "float32", (1, size, 9, 2), (3, 3, 2, 4), (stride, stride), padding)
        assert key.output_shape == tuple(
            tf.nn.conv2d(tf.zeros(key.input_shape), tf.zeros(key.filter_shape), stride, padding).shape
        )


def test_a_product_and_a_sum_are_two_operations():
    assert KEY.flops == 2 * (2 * 9 * 7 * 4) * (3 * 3 * 3)
    assert replace(KEY, padding="VALID").flops == 2 * (2 * 7 * 5 * 4) * 27


@pytest.mark.parametrize(
    ("window", "strides", "algorithms"),
    [
        ((3, 3), (1, 1), ("winograd", "direct")),
        ((1, 1), (1, 1), (MATMUL, "direct")),
        ((5, 3), (1, 1), ("direct",)),
        ((3, 3), (2, 2), ("direct",)),
        ((1, 1), (1, 2), ("direct",)),
    ],
)
def test_what_can_compute_it(window, strides, algorithms):
    assert replace(KEY, filter_shape=(*window, 3, 4), strides=strides).algorithms == algorithms


def test_an_assumed_batch_is_the_same_convolution():
    assert replace(KEY, batch_assumed=True) == KEY
    assert replace(KEY, bias=True) != KEY


@pytest.mark.parametrize(
    ("chosen", "speedup", "ours"), [("direct", 2.0, 2.0), (STOCK, 1.0, 2.0), ("winograd", 0.5, 2.0)]
)
def test_what_was_gained_and_could_have_been(chosen, speedup, ours):
    timing = Timing(KEY, {STOCK: 4.0, "direct": 2.0, "winograd": 8.0}, chosen)
    assert (timing.speedup, timing.best_of_ours) == (speedup, ours)
