"""`tiled_conv2d`: a two-dimensional convolution with bias and activation, differentiable, on our kernels."""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from overlap_train._support.arguments import require_choice, require_text, shown
from overlap_train._support.numbers import require_count
from overlap_train.conv import _gradients, library, selection
from overlap_train.conv.shapes import DIRECTIONS, STOCK, ConvKey, Timing

__all__ = ["ALGORITHMS", "ASSUMED_BATCH", "tiled_conv2d", "time_shape"]

ALGORITHMS = ("auto", "direct", "winograd")

# Keras traces its steps with an unknown batch; "auto" then times the shape at this one.
ASSUMED_BATCH = 8
_LONGEST_STRIDE = 2**31 - 1

Activation: TypeAlias = "str | Callable[[tf.Tensor], tf.Tensor] | None"


@dataclass(frozen=True)
class _Convolution:
    """What stays the same for every call of one convolution in a graph."""

    strides: tuple[int, int]
    padding: str
    relu: bool
    bias: bool
    algorithm: str
    batch_hint: int | None
    share: bool = True  # whether idle threads may help

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
        if not _may_run_natively(dtype):
            return STOCK
        key = self.key(direction, dtype, x, filters)
        if key is None:
            return _guess(self.strides, filters)
        # Timed on one thread: in training the others may have something of their own to do.
        alone = dataclasses.replace(self, share=False)
        return selection.choose(key, lambda algorithm: alone.function(direction, algorithm, key))

    def function(self, direction: str, algorithm: str, key: ConvKey) -> Callable[..., tf.Tensor]:
        """The function of `selection.operands` that computes `key` by one algorithm."""
        if direction == "forward":
            return lambda x, filters, bias: self.forward(algorithm, x, filters, bias)
        if direction == "input_gradient":
            return lambda filters, dz: self.input_gradient(algorithm, key.input_shape, filters, dz)
        return lambda x, dz: self.filter_gradient(algorithm, x, key.filter_shape, dz)

    @property
    def _stock_strides(self) -> list[int]:
        return [1, *self.strides, 1]

    @property
    def _native(self) -> dict[str, Any]:
        return {"strides": list(self.strides), "padding": self.padding, "share": self.share}

    def forward(self, algorithm: str, x: tf.Tensor, filters: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
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
        if algorithm != STOCK:
            return library.load().overlap_tiled_conv2d_backprop_filter(
                x, shape, dz, algorithm=algorithm, **self._native
            )
        return tf.raw_ops.Conv2DBackpropFilter(
            input=x, filter_sizes=shape, out_backprop=dz, strides=self._stock_strides, padding=self.padding
        )

    def epilogue_gradient(self, dy: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Back through bias and activation: the gradients of the sums and of the bias."""
        if self.relu and _may_run_natively(dy.dtype):
            dz, dbias = library.load().overlap_tiled_conv2d_epilogue_grad(dy, y)
            return dz, dbias if self.bias else dbias[:0]
        dz = tf.raw_ops.ReluGrad(gradients=dy, features=y) if self.relu else dy
        return dz, _gradients.bias_gradient(dz) if self.bias else tf.zeros([0], dy.dtype)

    def gradients(
        self, dy: tf.Tensor, y: tf.Tensor, x: tf.Tensor, filters: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """The gradients to input, filters and bias, each by the algorithm chosen for it."""
        dz, dbias = self.epilogue_gradient(dy, y)
        by_input = self.choose("input_gradient", x.dtype, x.shape, filters.shape)
        by_filter = self.choose("filter_gradient", x.dtype, x.shape, filters.shape)
        dx = self.input_gradient(by_input, tf.shape(x), filters, dz)
        return dx, self.filter_gradient(by_filter, x, tf.shape(filters), dz), dbias

    def __call__(self, x: tf.Tensor, filters: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
        """Computes the convolution, so that each direction runs the algorithm chosen for it."""
        y = self.forward(self.choose("forward", x.dtype, x.shape, filters.shape), x, filters, bias)
        # In place of what the tape has noted for the operations in it. In a graph, tf.custom_gradient would
        # register a function for each call, for ever, that keeps the graph alive.
        tf.__internal__.record_gradient(_registered_gradient(self), (x, filters, bias), (), (y,))
        return y


def _registered_gradient(convolution: _Convolution) -> str:
    """The name under which TensorFlow knows the gradients to (x, filters, bias). Any thread."""
    with _registering:
        return _register_gradient(convolution)


_registering = threading.Lock()


@functools.cache
def _register_gradient(convolution: _Convolution) -> str:
    name = f"OverlapTrain{convolution}"

    def gradient(op: Any, dy: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        x, filters, _ = op.inputs
        return convolution.gradients(dy, op.outputs[0], x, filters)

    tf.RegisterGradient(name)(gradient)
    return name


def convolution_for(key: ConvKey) -> _Convolution:
    """The convolution that a key describes; "auto"."""
    return _Convolution(key.strides, key.padding, key.relu, key.bias, "auto", None)


def time_shape(
    input_shape: tuple[int, int, int, int],
    filter_shape: tuple[int, int, int, int],
    *,
    dtype: str = "float32",
    strides: int | Sequence[int] = 1,
    padding: str = "SAME",
    bias: bool = False,
    relu: bool = False,
) -> tuple[Timing, ...]:
    """Times one shape in all three directions, as "auto" would when it meets it; what is known is not timed
    again.

    Raises:
        NativeUnavailableError: there is no library to time.
    """
    library.load()
    convolution = _Convolution(_pair("strides", strides), padding.upper(), relu, bias, "auto", None)
    keys = []
    for direction in DIRECTIONS:
        key = convolution.key(
            direction, tf.as_dtype(dtype), tf.TensorShape(input_shape), tf.TensorShape(filter_shape)
        )
        convolution.choose(
            direction, tf.as_dtype(dtype), tf.TensorShape(input_shape), tf.TensorShape(filter_shape)
        )
        keys.append(key)
    return tuple(timing for timing in selection.timings() if timing.key in keys)


def _may_run_natively(dtype: tf.DType) -> bool:
    if dtype not in (tf.float32, tf.float64):
        return False
    if not library.is_available():
        library.warn_unavailable_once()
        return False
    # Kernels for the CPU alone would pull the tensors off the GPU, where ours are of float32.
    if not tf.config.list_physical_devices("GPU"):
        return True
    return dtype == tf.float32 and library.has_cuda()


def _guess(strides: tuple[int, int], filters: tf.TensorShape) -> str:
    """A choice without timing, for images of unknown size."""
    sizes = filters.as_list() if filters.rank == 4 else []
    deep = len(sizes) == 4 and sizes[:2] == [3, 3] and all(n is not None and n >= 16 for n in sizes[2:])
    return "winograd" if deep and strides == (1, 1) else STOCK


def _pair(name: str, value: Any) -> tuple[int, int]:
    expected = "a positive integer or two of them, [height, width]"
    if isinstance(value, np.ndarray) and value.ndim:
        value = value.tolist()
    pair = value if isinstance(value, Sequence) and not isinstance(value, (str, bytes)) else (value, value)
    if len(pair) != 2:
        raise ValueError(f"{name} must be {expected}; got {shown(value)}")
    try:
        height, width = (require_count(name, n, minimum=1, maximum=_LONGEST_STRIDE) for n in pair)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be {expected}; got {shown(value)}") from error
    return height, width


def _check_options(
    padding: str, activation: Activation, algorithm: str, dilations: int | Sequence[int]
) -> None:
    if _pair("dilations", dilations) != (1, 1):
        raise ValueError(
            f"tiled_conv2d has no dilated convolution, got dilations={dilations!r}; use tf.nn.conv2d"
        )
    require_choice("algorithm", algorithm, ALGORITHMS)
    if not isinstance(padding, str) or padding.upper() not in ("SAME", "VALID"):
        raise ValueError(f"padding must be 'SAME' or 'VALID', got {shown(padding)}")
    known = isinstance(activation, str) and activation in ("linear", "relu")
    if not (known or activation is None or callable(activation)):
        raise ValueError(f"activation must be None, 'linear', 'relu' or a function, got {shown(activation)}")


def _tensor(name: str, value: Any, dtype: tf.DType | None = None) -> tf.Tensor:
    """Returns a value as a tensor; what TensorFlow says of one that it does not take begins with its name."""
    if value is None:
        raise TypeError(f"{name} must be a tensor, got None")
    try:
        return tf.convert_to_tensor(value, dtype=dtype, name=name)
    except Exception as error:
        kind = ValueError if isinstance(error, ValueError) else TypeError
        raise kind(f"{name} cannot be made a tensor: {error}") from error


def _check_tensors(x: tf.Tensor, filters: tf.Tensor, convolution: _Convolution) -> None:
    if x.dtype != filters.dtype:
        raise TypeError(f"x and filters must have one dtype, got {x.dtype.name} and {filters.dtype.name}")
    for name, tensor in (("x", x), ("filters", filters)):
        if tensor.shape.rank not in (None, 4):
            raise ValueError(f"{name} must have 4 dimensions, got shape {tensor.shape}")
    if (
        x.shape.rank == 4
        and filters.shape.rank == 4
        and not x.shape[3:].is_compatible_with(filters.shape[2:3])
    ):
        raise ValueError(
            f"x has {x.shape[3]} channels and filters expect {filters.shape[2]}; "
            "for a grouped convolution use tf.nn.conv2d"
        )
    if convolution.algorithm == "auto":
        return
    if x.dtype not in (tf.float32, tf.float64):
        raise TypeError(
            f"algorithm={convolution.algorithm!r} takes float32 and float64, got {x.dtype.name}; "
            "use algorithm='auto'"
        )
    if convolution.algorithm == "winograd" and (
        convolution.strides != (1, 1) or not filters.shape[:2].is_compatible_with([3, 3])
    ):
        raise ValueError(
            f"algorithm='winograd' needs 3×3 filters and strides of 1, got {filters.shape[:2]} and "
            f"{convolution.strides}; use 'direct' or 'auto'"
        )


def tiled_conv2d(
    x: Any,
    filters: Any,
    bias: Any = None,
    strides: int | Sequence[int] = 1,
    padding: str = "SAME",
    activation: Activation = None,
    algorithm: str = "auto",
    *,
    dilations: int | Sequence[int] = 1,
    batch_hint: int | None = None,
    name: str | None = None,
) -> tf.Tensor:
    """Computes activation(conv2d(x, filters) + bias), and its gradients, on the kernels that fit the shape.

    "auto" times ours and TensorFlow's when it first meets a shape, each of the three directions apart, and
    takes the fastest; `overlap_train.conv.report()` shows what it found. Without a compiler it is
    tf.nn.conv2d, and says so once. Not inside `jit_compile=True`: XLA has no custom operations.

    Args:
        x: float32 or float64, [batch, height, width, in_channels]; other types only with "auto", which leaves
            them to TensorFlow.
        filters: the same dtype, [height, width, in_channels, out_channels].
        bias: the same dtype, [out_channels], or None.
        strides: one number, or [height, width].
        padding: "SAME" or "VALID", in any case.
        activation: None, "linear", "relu" (computed within the operation), or a function applied to the
            result.
        algorithm: "auto", "direct", or "winograd" (3×3 filters with strides of 1; a few times the rounding
            error, and an infinity or NaN makes the 4×4 outputs around it NaN).
        dilations: must be 1.
        batch_hint: the batch at which "auto" times a shape whose batch is unknown, otherwise `ASSUMED_BATCH`.
        name: of the name scope.

    Returns:
        [batch, out_height, out_width, out_channels].

    Raises:
        ValueError, TypeError: an argument is wrong, or dilated.
        NativeUnavailableError: `algorithm` is not "auto", and the library cannot be built or loaded here.
        tf.errors.InvalidArgumentError: shapes unknown until the operation ran do not fit.
    """
    _check_options(padding, activation, algorithm, dilations)
    if batch_hint is not None:
        batch_hint = require_count("batch_hint", batch_hint, minimum=1, expected="an integer or None")
    if name is not None:
        name = require_text("name", name)
    after = activation if callable(activation) else None
    if after is tf.nn.relu or after is tf.keras.activations.relu:
        activation, after = "relu", None
    convolution = _Convolution(
        _pair("strides", strides),
        padding.upper(),
        activation == "relu",
        bias is not None,
        algorithm,
        batch_hint,
    )
    with tf.name_scope(name or "tiled_conv2d"):
        x = _tensor("x", x)
        if not (x.dtype.is_floating or x.dtype == tf.int32):
            raise TypeError(f"x must be of a floating dtype, got {x.dtype.name}")
        filters = _tensor("filters", filters, x.dtype)
        offsets = tf.zeros([0], x.dtype) if bias is None else _tensor("bias", bias, x.dtype)
        _check_tensors(x, filters, convolution)
        if algorithm != "auto":
            library.load()
        y = convolution(x, filters, offsets)
        return y if after is None else after(y)
