"""Large convolutions and dense layers in pieces that run beside each other, on several cores or devices.

A request that is alone keeps one core busy, since its network has no other layer ready. In pieces a layer is
moldable (Feitelson and Rudolph 1996): whether it runs whole or in pieces, and where, is decided when it
could begin.

- A dense layer for a few examples does little but read its weights. Each piece multiplies some of the inputs
  by their rows of the kernel; the join adds the partial sums, the bias and the activation. Rows of a kernel
  are contiguous in memory, so that TensorFlow reads them in place; columns it would copy in each call.
- Of a convolution each piece computes some of the output channels (as muLayer does, Kim et al., EuroSys
  2019), for which its part of the kernel is copied; the join puts the channels together.

A model inside a model is one layer, so what is in it is not cut.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from overlap_train.scheduling.graph.calls import Call, elements, tensor_bytes
from overlap_train.scheduling.graph.layers import Work

__all__ = ["constant_pieces", "cut_call"]

# Below, what a call costs is more than what the pieces save.
_LEAST_PARAMETERS = 1 << 20
_LEAST_FLOPS = 1 << 26

# Whatever the number of columns, such rows begin at multiples of 64 bytes: TensorFlow slices there in place.
# So many channels fill a vector register.
_MULTIPLE = 16

_ELEMENTWISE = frozenset(
    getattr(keras.activations, name)
    for name in ("linear", "relu", "relu6", "leaky_relu", "elu", "selu", "gelu", "silu", "sigmoid", "tanh")
) | {None}


_constant: ContextVar[bool] = ContextVar("constant_pieces", default=False)


@contextlib.contextmanager
def constant_pieces() -> Iterator[None]:
    """Pieces that are traced meanwhile have their own part of the weights built in, and not all of them."""
    token = _constant.set(True)
    try:
        yield
    finally:
        _constant.reset(token)


def _value(variable: Any) -> np.ndarray:
    with tf.init_scope():  # out of the function that is being traced
        return np.asarray(variable)


def cut_call(call: Call, pieces: int) -> list[Call]:
    """Cuts a call of a large layer.

    Args:
        call: of any layer.
        pieces: how many at most.

    Returns:
        The pieces and the call that joins them, whose `whole` is the call itself. Or only the call, if it is
        not one of a dense layer with at least 2^20 weights or of a `Conv2D` with at least 2^26 FLOPs for an
        example; if a subclass or the user has replaced what the layer computes; if it is quantised, has LoRA
        weights, or computes in half precision, to which partial sums would be rounded; if a convolution is
        grouped, is `channels_first`, or has an activation that mixes channels.
    """
    layer = call.operation
    if pieces < 2 or not _is_plain(layer):
        return [call]
    if type(layer) is keras.layers.Dense and elements(layer.kernel.shape) >= _LEAST_PARAMETERS:
        return _cut_dense(call, _bounds(layer.kernel.shape[0], pieces))
    if type(layer) is keras.layers.Conv2D and call.work.flops >= _LEAST_FLOPS and _has_free_channels(layer):
        return _cut_convolution(call, _bounds(layer.filters, pieces))
    return [call]


def _is_plain(layer: Any) -> bool:
    return (
        type(layer) in (keras.layers.Dense, keras.layers.Conv2D)
        and not {"call", "convolution_op"} & set(vars(layer))
        and not getattr(layer, "quantization_mode", None)
        and not getattr(layer, "lora_enabled", False)
        and layer.compute_dtype in ("float32", "float64")
    )


def _has_free_channels(layer: Any) -> bool:
    return layer.groups == 1 and layer.data_format == "channels_last" and layer.activation in _ELEMENTWISE


def _bounds(length: int, pieces: int) -> list[int]:
    """Where the pieces begin, and the end; about equal, at multiples of 16."""
    blocks = -(-length // _MULTIPLE)
    pieces = min(pieces, blocks)
    return [min(length, blocks * number // pieces * _MULTIPLE) for number in range(pieces + 1)]


def _cut_dense(call: Call, bounds: Sequence[int]) -> list[Call]:
    layer, (y,) = call.operation, call.outputs
    partial = [keras.KerasTensor(y.shape, y.dtype) for _ in bounds[1:]]
    # The sum reads all and writes; bias and activation do once more.
    moved = tensor_bytes(y) * (len(partial) + 3)
    work = Work("merge", elements(y.shape[1:]) * (len(partial) + 1), moved, operations=2)
    return _in_pieces(call, bounds, partial, _dense_work, _dense_piece, "sum", work, _sum_up(layer))


def _dense_piece(layer: Any, first: int, stop: int) -> Callable[[Sequence[Any]], Sequence[Any]]:
    def run(values: Sequence[Any]) -> Sequence[Any]:
        dtype = layer.compute_dtype
        if _constant.get():
            kernel = tf.constant(_value(layer.kernel)[first:stop], dtype)
        else:
            kernel = tf.cast(rows_of(layer.kernel, first, stop), dtype)
        return [keras.ops.matmul(tf.cast(values[0], dtype)[..., first:stop], kernel)]

    return run


def rows_of(kernel: Any, first: int, stop: int) -> tf.Tensor:
    """Returns rows of a kernel, on its own memory if they begin and end at multiples of 64 bytes.

    Of a matrix TensorFlow would copy them if the columns were not a multiple of 16; of a vector it looks at
    where they begin and end. They are taken where the variable is, so that no more than they go elsewhere.
    """
    columns = kernel.shape[1]
    with tf.device(kernel.value.device):
        flat = tf.reshape(tf.convert_to_tensor(kernel), [-1])
        return tf.reshape(flat[first * columns : stop * columns], [stop - first, columns])


def _sum_up(layer: Any) -> Callable[[Sequence[Any]], Sequence[Any]]:
    def run(values: Sequence[Any]) -> Sequence[Any]:
        total = tf.add_n(list(values))
        if layer.use_bias:
            total = total + tf.cast(tf.convert_to_tensor(layer.bias), layer.compute_dtype)
        return [layer.activation(total) if layer.activation is not None else total]

    return run


def _dense_work(call: Call, first: int, stop: int) -> Work:
    (x,), (y,) = call.inputs, call.outputs
    kernel = call.operation.kernel
    share = (stop - first) / kernel.shape[0]
    flops = 2.0 * elements(y.shape[1:-1]) * (stop - first) * kernel.shape[1]
    return Work("dense", flops, share * tensor_bytes(x) + tensor_bytes(y), call.work.weight_bytes * share)


def _cut_convolution(call: Call, bounds: Sequence[int]) -> list[Call]:
    (y,) = call.outputs
    partial = [
        keras.KerasTensor((*y.shape[:-1], stop - first), y.dtype)
        for first, stop in itertools.pairwise(bounds)
    ]
    work = Work("merge", 0.0, 2.0 * tensor_bytes(y))
    return _in_pieces(
        call, bounds, partial, _convolution_work, _convolution_piece, "channels", work, _put_together
    )


def _convolution_piece(layer: Any, first: int, stop: int) -> Callable[[Sequence[Any]], Sequence[Any]]:
    def run(values: Sequence[Any]) -> Sequence[Any]:
        dtype = layer.compute_dtype
        if _constant.get():
            kernel = tf.constant(_value(layer.kernel)[..., first:stop])
        else:
            with tf.device(layer.kernel.value.device):
                kernel = tf.convert_to_tensor(layer.kernel)[..., first:stop]
        y = layer.convolution_op(tf.cast(values[0], dtype), tf.cast(kernel, dtype))
        if layer.use_bias:
            y = tf.nn.bias_add(y, tf.cast(tf.convert_to_tensor(layer.bias)[first:stop], dtype))
        return [layer.activation(y) if layer.activation is not None else y]

    return run


def _convolution_work(call: Call, first: int, stop: int) -> Work:
    (x,), (y,) = call.inputs, call.outputs
    share = (stop - first) / call.operation.filters
    moved = tensor_bytes(x) + share * tensor_bytes(y)
    return Work("conv", call.work.flops * share, moved, call.work.weight_bytes * share)


def _put_together(values: Sequence[Any]) -> Sequence[Any]:
    return [tf.concat(list(values), axis=-1)]


def _in_pieces(
    call: Call,
    bounds: Sequence[int],
    partial: Sequence[Any],
    work_of_piece: Callable[[Call, int, int], Work],
    piece: Callable[[Any, int, int], Callable[[Sequence[Any]], Sequence[Any]]],
    join: str,
    work: Work,
    run: Callable[[Sequence[Any]], Sequence[Any]],
) -> list[Call]:
    if len(partial) < 2:
        return [call]
    layer = call.operation
    cut = [
        Call(
            f"{call.name}/{number}",
            layer,
            call.inputs,
            (tensor,),
            work_of_piece(call, first, stop),
            piece(layer, first, stop),
            alone=True,
        )
        for number, (tensor, (first, stop)) in enumerate(
            zip(partial, itertools.pairwise(bounds), strict=True)
        )
    ]
    return [
        *cut,
        replace(call, name=f"{call.name}/{join}", inputs=tuple(partial), work=work, run=run, whole=call),
    ]
