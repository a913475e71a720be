"""`tiled_conv2d`, a convolution with bias and activation on our kernels, and the layer `TiledConv2D`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from overlap_train._support.arguments import is_text, require_choice, require_count, require_text, short_repr
from overlap_train.conv import library
from overlap_train.conv.convolution import Convolution

ALGORITHMS = ("auto", "direct", "winograd")
_LONGEST_STRIDE = 2**31 - 1

Activation: TypeAlias = "str | Callable[[tf.Tensor], tf.Tensor] | None"


def _pair(name: str, value: Any) -> tuple[int, int]:
    expected = "a positive integer or two of them, [height, width]"
    if isinstance(value, np.ndarray) and value.ndim:
        value = value.tolist()
    pair = value if isinstance(value, Sequence) and not isinstance(value, (str, bytes)) else (value, value)
    if len(pair) != 2:
        raise ValueError(f"{name} must be {expected}; got {short_repr(value)}")
    try:
        height, width = (require_count(name, n, minimum=1, maximum=_LONGEST_STRIDE) for n in pair)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be {expected}; got {short_repr(value)}") from error
    return height, width


def _check_options(padding: str, activation: Activation) -> None:
    if not isinstance(padding, str) or str.upper(padding) not in ("SAME", "VALID"):
        raise ValueError(f"padding must be 'SAME' or 'VALID', got {short_repr(padding)}")
    if not (is_text(activation, "linear", "relu") or activation is None or callable(activation)):
        raise ValueError(
            f"activation must be None, 'linear', 'relu' or a function, got {short_repr(activation)}"
        )


def _tensor(name: str, value: Any, dtype: tf.DType | None = None) -> tf.Tensor:
    """Return a value as a tensor, or raise an error that begins with the argument's name."""
    try:
        is_array = isinstance(value, (list, tuple, int, float)) or tf.is_tensor(value)
        is_array = is_array or hasattr(value, "__array__")
    except Exception:  # a custom object may raise anything
        is_array = False
    if not is_array:  # TensorFlow would walk through it item by item: a range, a dict that holds itself
        raise TypeError(f"{name} must be a tensor or an array, got {short_repr(value)}")
    try:
        return tf.convert_to_tensor(value, dtype=dtype, name=name)
    except Exception as error:
        kind = ValueError if isinstance(error, ValueError) else TypeError
        raise kind(f"{name} cannot be made a tensor: {error}") from error


def _check_tensors(x: tf.Tensor, filters: tf.Tensor, convolution: Convolution) -> None:
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
    batch_hint: int | None = None,
    name: str | None = None,
) -> tf.Tensor:
    """Compute activation(conv2d(x, filters) + bias), with gradients, on the fastest kernels for the shape.

    "auto" times the algorithms and TensorFlow's convolution when it first meets a shape, separately for each
    of the three directions, and uses the fastest; `overlap_train.conv.report()` returns the times. If the
    library cannot be built, "auto" uses tf.nn.conv2d and says so once. Do not use it with `jit_compile=True`:
    XLA cannot run custom operations. Any thread may call it.

    Args:
        x: float32 or float64, [batch, height, width, in_channels]; other dtypes only with "auto", which
            leaves them to TensorFlow.
        filters: the same dtype, [height, width, in_channels, out_channels].
        bias: the same dtype, [out_channels], or None.
        strides: one number, or [height, width].
        padding: "SAME" or "VALID", in upper or lower case.
        activation: None, "linear", "relu" (computed within the operation), or a function applied to the
            result.
        algorithm: "auto", "direct", or "winograd". "winograd" is for 3×3 filters with strides of 1. Its
            rounding error is a few times larger, and an infinity or NaN makes the 4×4 outputs around it NaN.
        batch_hint: the batch size with which "auto" times a shape whose batch is unknown; None means 8.
        name: name of the name scope.

    Returns:
        A tensor [batch, out_height, out_width, out_channels] of the same dtype.

    Raises:
        ValueError: an argument has an invalid value.
        TypeError: an argument has the wrong type, or the dtypes differ.
        NativeUnavailableError: `algorithm` is not "auto", and the library cannot be built or loaded here.
        tf.errors.InvalidArgumentError: shapes that are known only when the operation runs do not fit.
    """
    _check_options(padding, activation)
    if batch_hint is not None:
        batch_hint = require_count("batch_hint", batch_hint, minimum=1, expected="an integer or None")
    if name is not None:
        name = require_text("name", name)
    after = activation if callable(activation) else None
    if after is tf.nn.relu or after is tf.keras.activations.relu:
        activation, after = "relu", None
    convolution = Convolution(
        _pair("strides", strides),
        str.upper(padding),
        is_text(activation, "relu"),
        bias is not None,
        require_choice("algorithm", algorithm, ALGORITHMS),
        batch_hint,
    )
    with tf.name_scope(name or "tiled_conv2d"):
        x = _tensor("x", x)
        if not (x.dtype.is_floating or x.dtype == tf.int32):
            raise TypeError(f"x must be of a floating dtype, got {x.dtype.name}")
        filters = _tensor("filters", filters, x.dtype)
        offsets = tf.zeros([0], x.dtype) if bias is None else _tensor("bias", bias, x.dtype)
        _check_tensors(x, filters, convolution)
        if convolution.algorithm != "auto":
            library.load()
        y = convolution(x, filters, offsets)
        return y if after is None else after(y)


def unsupported(layer: keras.layers.Conv2D) -> str | None:
    """Return why our operation cannot compute a Conv2D layer, or None if it can."""
    if layer.data_format != "channels_last":
        return f"data_format={layer.data_format!r}: only channels_last"
    if layer.groups != 1:
        return f"groups={layer.groups}: no grouped convolution"
    if tuple(layer.dilation_rate) != (1, 1):
        return f"dilation_rate={tuple(layer.dilation_rate)}: no dilated convolution"
    if layer.padding not in ("same", "valid"):
        return f"padding={layer.padding!r}: only same and valid"
    return None


def convolve(
    layer: keras.layers.Conv2D, inputs: tf.Tensor, *, algorithm: str = "auto", batch_hint: int | None = None
) -> tf.Tensor:
    """Compute a Conv2D layer by our operation, which includes a ReLU."""
    relu = layer.activation is keras.activations.relu
    y = tiled_conv2d(
        inputs,
        layer.kernel,
        layer.bias if layer.use_bias else None,
        strides=layer.strides,
        padding=layer.padding,
        activation="relu" if relu else None,
        algorithm=algorithm,
        batch_hint=batch_hint,
        name=layer.name,
    )
    return y if relu or layer.activation is None else layer.activation(y)


@keras.saving.register_keras_serializable(package="overlap_train")
class TiledConv2D(keras.layers.Conv2D):  # type: ignore[misc]
    """Convolve like keras.layers.Conv2D, with the same arguments, weights and results, on `tiled_conv2d`.

    A saved model with this layer needs this package to load; `accelerate` avoids that.

    Args:
        *args: the positional arguments of keras.layers.Conv2D.
        algorithm: the algorithm of `tiled_conv2d`: "auto", "direct" or "winograd".
        **kwargs: the keyword arguments of keras.layers.Conv2D; channels_last, without groups and dilation.

    Raises:
        ValueError: an argument asks for something that only keras.layers.Conv2D can do.
    """

    def __init__(self, *args: Any, algorithm: str = "auto", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        algorithm = require_choice("algorithm", algorithm, ALGORITHMS)
        reason = unsupported(self)
        if reason is not None:
            raise ValueError(f"TiledConv2D cannot do {reason}; use keras.layers.Conv2D")
        self.algorithm = algorithm

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return the layer's output, [batch, height, width, filters]."""
        return convolve(self, inputs, algorithm=self.algorithm)

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {**super().get_config(), "algorithm": self.algorithm}
