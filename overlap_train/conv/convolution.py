"""A convolution of a graph: its directions by TensorFlow's kernels or ours, and the choice among them.

Frozen, so that it may be the key of its gradient; any thread may trace it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from overlap_train.conv import library, selection
from overlap_train.conv.library import bias_gradient, record_gradient
from overlap_train.conv.selection import DIRECTIONS, MATMUL, STOCK, ConvKey, Timing

# Keras traces its steps with an unknown batch; "auto" then times the shape at this one.
ASSUMED_BATCH = 8


@dataclass(frozen=True)
class Convolution:
    """What stays the same for every call of one convolution in a graph."""

    strides: tuple[int, int]
    padding: str
    relu: bool
    bias: bool
    algorithm: str = "auto"
    batch_hint: int | None = None  # the batch at which "auto" times a shape whose batch is unknown
    share: bool = True  # idle threads may help

    @classmethod
    def of(cls, key: ConvKey) -> Convolution:
        """Return the convolution that a key describes, with algorithm "auto"."""
        return cls(key.strides, key.padding, key.relu, key.bias)

    def key(
        self, direction: str, dtype: tf.DType, x: tf.TensorShape, filters: tf.TensorShape
    ) -> ConvKey | None:
        """The key to choose an algorithm by, or None where the shapes are unknown."""
        if x.rank != 4 or not x[1:].is_fully_defined() or not filters.is_fully_defined():
            return None
        batch, *image = x.as_list()
        assumed = batch is None
        shape = (batch if batch is not None else self.batch_hint or ASSUMED_BATCH, *image)
        forward = direction == "forward"
        return ConvKey(
            direction,
            dtype.name,
            shape,
            tuple(filters.as_list()),
            self.strides,
            self.padding,
            bias=forward and self.bias,
            relu=forward and self.relu,
            batch_assumed=assumed,
        )

    def choose(self, direction: str, dtype: tf.DType, x: tf.TensorShape, filters: tf.TensorShape) -> str:
        if self.algorithm != "auto":
            return self.algorithm
        if not may_run_natively(dtype):
            return STOCK
        key = self.key(direction, dtype, x, filters)
        if key is None:
            return _guess(self.strides, filters)
        # Timed on one thread, as the other threads may be busy in training.
        alone = dataclasses.replace(self, share=False)
        return selection.choose(key, lambda algorithm: alone.function(direction, algorithm, key))

    def function(self, direction: str, algorithm: str, key: ConvKey) -> Callable[..., tf.Tensor]:
        """The function of `selection.operands` that computes `key` by one algorithm."""
        if direction == "forward":
            return lambda x, filters, bias: self.forward(algorithm, x, filters, bias)
        if direction == "input_gradient":
            return lambda filters, dz: self.input_gradient(algorithm, key.input_shape, filters, dz)
        return lambda x, dz: self.filter_gradient(algorithm, x, key.filter_shape, dz)

    def timings(self, dtype: tf.DType, x: tf.TensorShape, filters: tf.TensorShape) -> tuple[Timing, ...]:
        """Return the timings of all three directions; those that are missing are measured, as by "auto"."""
        library.load()
        for direction in DIRECTIONS:
            self.choose(direction, dtype, x, filters)
        keys = [self.key(direction, dtype, x, filters) for direction in DIRECTIONS]
        return tuple(timing for timing in selection.report() if timing.key in keys)

    @property
    def _stock_strides(self) -> list[int]:
        return [1, *self.strides, 1]

    @property
    def _native(self) -> dict[str, Any]:
        return {"strides": list(self.strides), "padding": self.padding, "share": self.share}

    def forward(self, algorithm: str, x: tf.Tensor, filters: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
        if algorithm == MATMUL:
            return matmul_forward(x, filters, bias if self.bias else None, relu=self.relu)
        if algorithm != STOCK:
            activation = "relu" if self.relu else "linear"
            return library.load().overlap_tiled_conv2d(
                x, filters, bias, activation=activation, algorithm=algorithm, **self._native
            )
        y = tf.nn.conv2d(x, filters, self._stock_strides, self.padding)
        if self.bias:
            y = tf.nn.bias_add(y, bias)
        return tf.nn.relu(y) if self.relu else y

    def input_gradient(self, algorithm: str, shape: Any, filters: tf.Tensor, dz: tf.Tensor) -> tf.Tensor:
        if algorithm == MATMUL:
            return matmul_input_gradient(shape, filters, dz)
        if algorithm != STOCK:
            return library.load().overlap_tiled_conv2d_backprop_input(
                shape, filters, dz, algorithm=algorithm, **self._native
            )
        return tf.raw_ops.Conv2DBackpropInput(
            input_sizes=shape,
            filter=filters,
            out_backprop=dz,
            strides=self._stock_strides,
            padding=self.padding,
        )

    def filter_gradient(self, algorithm: str, x: tf.Tensor, shape: Any, dz: tf.Tensor) -> tf.Tensor:
        if algorithm == MATMUL:
            return matmul_filter_gradient(x, shape, dz)
        if algorithm != STOCK:
            return library.load().overlap_tiled_conv2d_backprop_filter(
                x, shape, dz, algorithm=algorithm, **self._native
            )
        return tf.raw_ops.Conv2DBackpropFilter(
            input=x, filter_sizes=shape, out_backprop=dz, strides=self._stock_strides, padding=self.padding
        )

    def epilogue_gradient(self, dy: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Back through bias and activation: the gradients of the sums and of the bias."""
        if self.relu and may_run_natively(dy.dtype):
            dz, dbias = library.load().overlap_tiled_conv2d_epilogue_grad(dy, y)
            return dz, dbias if self.bias else dbias[:0]
        dz = tf.raw_ops.ReluGrad(gradients=dy, features=y) if self.relu else dy
        return dz, bias_gradient(dz) if self.bias else tf.zeros([0], dy.dtype)

    def gradients(
        self, dy: tf.Tensor, y: tf.Tensor, x: tf.Tensor, filters: tf.Tensor, _: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """The gradients to input, filters and bias, each by the algorithm chosen for it."""
        dy.set_shape(y.shape)  # which a custom gradient may have lost
        dz, dbias = self.epilogue_gradient(dy, y)
        by_input = self.choose("input_gradient", x.dtype, x.shape, filters.shape)
        by_filter = self.choose("filter_gradient", x.dtype, x.shape, filters.shape)
        dx = self.input_gradient(by_input, tf.shape(x), filters, dz)
        return dx, self.filter_gradient(by_filter, x, tf.shape(filters), dz), dbias

    def __call__(self, x: tf.Tensor, filters: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
        """Compute the convolution; each direction runs the algorithm chosen for it."""
        y = self.forward(self.choose("forward", x.dtype, x.shape, filters.shape), x, filters, bias)
        record_gradient(self, (x, filters, bias), y)
        return y


def may_run_natively(dtype: tf.DType) -> bool:
    """Whether our kernels may compute in `dtype` here; if there is no library, the reason is logged once."""
    if dtype not in (tf.float32, tf.float64):
        return False
    if not library.is_available():
        library.warn_unavailable_once()
        return False
    if not tf.config.list_physical_devices("GPU"):
        return True
    # Kernels for the CPU alone would pull the tensors off the GPU. Ours for GPUs are of float32; on tensor
    # cores they reach 0.6 of cuDNN's speed (docs/results/2026-11-26-nvidia-h100-80gb-hbm3.md).
    on_tensor_cores = tf.config.experimental.tensor_float_32_execution_enabled()
    return dtype == tf.float32 and library.has_cuda() and not on_tensor_cores


def _guess(strides: tuple[int, int], filters: tf.TensorShape) -> str:
    """Choose an algorithm without timing, for images of unknown size."""
    sizes = filters.as_list() if filters.rank == 4 else []
    deep = len(sizes) == 4 and sizes[:2] == [3, 3] and all(n is not None and n >= 16 for n in sizes[2:])
    return "winograd" if deep and strides == (1, 1) else STOCK


def matmul_forward(x: tf.Tensor, filters: tf.Tensor, bias: tf.Tensor | None, *, relu: bool) -> tf.Tensor:
    """Compute [batch, height, width, out_channels] from filters [1, 1, in_channels, out_channels].

    A 1x1 convolution is this product. For small images of many channels, TensorFlow's convolution takes
    longer to prepare it than to compute it.
    """
    y = tf.matmul(_rows(x), _matrix(filters))
    if bias is not None:
        y = tf.nn.bias_add(y, bias)
    if relu:
        y = tf.nn.relu(y)
    return tf.reshape(y, [-1, x.shape[1], x.shape[2], filters.shape[3]])


def matmul_input_gradient(shape: Any, filters: tf.Tensor, dz: tf.Tensor) -> tf.Tensor:
    """Compute the gradient to the input, which has `shape`."""
    return tf.reshape(tf.matmul(_rows(dz), _matrix(filters), transpose_b=True), shape)


def matmul_filter_gradient(x: tf.Tensor, shape: Any, dz: tf.Tensor) -> tf.Tensor:
    """Compute the gradient to the filters, which have `shape`."""
    return tf.reshape(tf.matmul(_rows(x), _rows(dz), transpose_a=True), shape)


def _rows(image: tf.Tensor) -> tf.Tensor:
    return tf.reshape(image, [-1, image.shape[3]])


def _matrix(filters: tf.Tensor) -> tf.Tensor:
    return tf.reshape(filters, filters.shape[2:])


@dataclass(frozen=True)
class DepthwiseConvolution:
    """What stays the same for every call of one depthwise convolution; TensorFlow's operations, our gradient.

    TensorFlow forms the gradient of the filters for one image at a time and then adds the images' results: on
    small images of many channels, which are half of a MobileNet, this takes several times as long as the
    other two directions together.
    """

    stride: int  # of both dimensions; TensorFlow has no others
    padding: str

    def __call__(self, x: tf.Tensor, filters: tf.Tensor) -> tf.Tensor:
        """Compute [batch, out_height, out_width, channels] from filters [height, width, channels, 1]."""
        y = tf.nn.depthwise_conv2d(x, filters, self._window, self.padding)
        record_gradient(self, (x, filters), y)
        return y

    def gradients(
        self, dy: tf.Tensor, _: tf.Tensor, x: tf.Tensor, filters: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """The gradients to input and filters."""
        dx = tf.nn.depthwise_conv2d_backprop_input(tf.shape(x), filters, dy, self._window, self.padding)
        dfilters = library.load().overlap_depthwise_conv2d_backprop_filter(
            x, tf.shape(filters), dy, strides=[self.stride] * 2, padding=self.padding
        )
        return dx, dfilters

    @property
    def _window(self) -> list[int]:
        return [1, self.stride, self.stride, 1]
