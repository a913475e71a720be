"""One convolution of a graph: the choice among algorithms, products of matrices, depthwise ones."""

from __future__ import annotations

import dataclasses
import functools
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from overlap_train.conv import convolution as module
from overlap_train.conv import selection
from overlap_train.conv.convolution import Convolution, DepthwiseConvolution, may_run_natively
from overlap_train.conv.selection import DIRECTIONS, MATMUL, STOCK, ConvKey

IMAGE, FILTERS = tf.TensorShape([2, 9, 7, 3]), tf.TensorShape([3, 3, 3, 4])


@pytest.fixture
def library(monkeypatch):
    """Stands in for the compiled library, which may be missing or lack CUDA."""
    made = SimpleNamespace(available=True, cuda=False, gpus=[], tensor_cores=False, warned=0)
    monkeypatch.setattr(module.library, "is_available", lambda: made.available)
    monkeypatch.setattr(module.library, "has_cuda", lambda: made.cuda)
    monkeypatch.setattr(
        module.library, "warn_unavailable_once", lambda: setattr(made, "warned", made.warned + 1)
    )
    monkeypatch.setattr(module.tf.config, "list_physical_devices", lambda kind: made.gpus)
    monkeypatch.setattr(
        module.tf.config.experimental, "tensor_float_32_execution_enabled", lambda: made.tensor_cores
    )
    return made


@pytest.mark.parametrize(
    ("dtype", "gpus", "cuda", "tensor_cores", "expected"),
    [
        (tf.float32, [], False, True, True),
        (tf.float64, [], False, True, True),
        (tf.float16, [], False, True, False),
        (tf.float32, ["GPU"], False, False, False),
        (tf.float32, ["GPU"], True, False, True),
        (tf.float32, ["GPU"], True, True, False),  # which is left to cuDNN
        (tf.float64, ["GPU"], True, False, False),
    ],
)
def test_our_kernels_run_where_the_tensors_are(library, dtype, gpus, cuda, tensor_cores, expected):
    library.gpus, library.cuda, library.tensor_cores = gpus, cuda, tensor_cores
    assert may_run_natively(dtype) is expected
    assert library.warned == 0


RNG = np.random.default_rng(4)
PRODUCT = ConvKey("forward", "float32", (2, 8, 8, 3), (1, 1, 3, 5), (1, 1), "SAME")


def numbers(*shape: int, dtype: str = "float64") -> tf.Tensor:
    return tf.constant(RNG.normal(size=shape), dtype)


def with_gradients(compute, given, by=None):
    """Returns what is computed, and the gradients by the first operands."""
    with tf.GradientTape() as tape:
        tape.watch(given)
        y = compute(*given)
        loss = tf.reduce_sum(tf.sin(y))
    return [y, *tape.gradient(loss, given[:by])]


def assert_alike(ours, theirs, tolerance):
    for one, other in zip(ours, theirs, strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


@pytest.fixture
def _as_products(monkeypatch):
    monkeypatch.setattr(selection, "choose", lambda key, compute: MATMUL)


@pytest.mark.usefixtures("native", "_as_products")
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("batch", [2, None])
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_value_and_gradients_are_those_of_tensorflow(bias, relu, batch, padding):
    x, filters, offsets = numbers(2, 3, 4, 6), numbers(1, 1, 6, 5), numbers(5 if bias else 0)

    def stock(x, filters, offsets):
        y = tf.nn.conv2d(x, filters, 1, padding)
        y = tf.nn.bias_add(y, offsets) if bias else y
        return tf.nn.relu(y) if relu else y

    def traced(compute):
        @tf.function(input_signature=[tf.TensorSpec([batch, 3, 4, 6], tf.float64)], autograph=False)
        def step(x):
            return with_gradients(compute, [x, filters, offsets], 3 if bias else 2)

        return step(x)

    assert_alike(traced(Convolution((1, 1), padding, relu=relu, bias=bias)), traced(stock), 1e-12)


@pytest.mark.usefixtures("native", "_as_products")
def test_gradients_of_a_function_that_forgets_shapes():
    @tf.custom_gradient
    def forgetful(y):
        def gradient(dy):
            return tf.numpy_function(lambda value: value, [dy], dy.dtype)

        return tf.identity(y), gradient

    def ours(x, filters):
        plain = Convolution((1, 1), "SAME", relu=False, bias=False)
        return forgetful(plain(x, filters, tf.zeros([0], x.dtype)))

    given = [numbers(2, 3, 4, 6), numbers(1, 1, 6, 5)]
    theirs = with_gradients(lambda x, filters: tf.nn.conv2d(x, filters, 1, "SAME"), given)
    assert_alike(tf.function(lambda: with_gradients(ours, given), autograph=False)(), theirs, 1e-12)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, MATMUL),
        ({"input_shape": (2, 64, 64, 3)}, STOCK),
        ({"strides": (2, 2)}, STOCK),
        ({"strides": (1, 2)}, STOCK),
        ({"filter_shape": (3, 3, 3, 5)}, STOCK),
        ({"filter_shape": (1, 2, 3, 5)}, STOCK),
    ],
    ids=str,
)
def test_what_nobody_has_timed_is_a_product_where_its_rows_are_few(changes, expected):
    selection.clear_timings()
    for direction in DIRECTIONS:
        key = dataclasses.replace(PRODUCT, direction=direction, **changes)
        with selection.only_known():
            assert selection.choose(key, None) == expected
    empty = dataclasses.replace(PRODUCT, input_shape=(0, 8, 8, 3))
    assert selection.choose(empty, None) != MATMUL


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize(
    ("image", "window"),
    [((3, 9, 7, 20), (3, 3)), ((2, 6, 11, 67), (5, 2)), ((5, 1, 1, 130), (1, 1)), ((0, 4, 4, 16), (3, 3))],
    ids=str,
)
def test_gradients_are_those_of_tensorflow(padding, stride, image, window):
    if image[1] < window[0] and padding == "VALID":
        pytest.skip("no window fits")
    given = [numbers(*image, dtype="float32"), numbers(*window, image[3], 1, dtype="float32")]
    ours = with_gradients(DepthwiseConvolution(stride, padding), given)
    stock = functools.partial(tf.nn.depthwise_conv2d, strides=[1, stride, stride, 1], padding=padding)
    theirs = with_gradients(stock, given)
    if not image[0]:  # TensorFlow leaves this gradient uninitialised without oneDNN
        theirs[2] = tf.zeros_like(given[1])
    assert_alike(ours, theirs, 1e-4)


@pytest.mark.usefixtures("native")
def test_derivatives_of_derivatives_are_those_of_tensorflow():
    shapes = (2, 5, 6, 20), (3, 3, 20, 1), (3, 3, 20, 1)
    x, filters, weights = (numbers(*shape, dtype="float32") for shape in shapes)

    def second(convolve):
        with tf.GradientTape() as outer:
            outer.watch([x, filters])
            with tf.GradientTape() as inner:
                inner.watch(filters)
                loss = tf.reduce_sum(tf.square(convolve(x, filters)))
            penalty = tf.reduce_sum(inner.gradient(loss, filters) * weights)
        return outer.gradient(penalty, [x, filters])

    stock = functools.partial(tf.nn.depthwise_conv2d, strides=[1, 2, 2, 1], padding="SAME")
    assert_alike(second(DepthwiseConvolution(2, "SAME")), second(stock), 1e-3)
