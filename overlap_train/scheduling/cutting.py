"""Cutting one large dense layer into pieces that run beside each other, on several cores or devices.

A dense layer for a few examples does little but read its weights, so one core or one loaded GPU is slow at
it while the others have nothing to do: its network has no other layer ready. Each piece multiplies some of
the inputs by their rows of the kernel, and a last call adds the partial sums, the bias and the activation.
(muLayer, Kim et al., EuroSys 2019, cuts layers by output channels instead. Rows of a kernel in memory are
contiguous, so that TensorFlow reads them in place; columns it would copy in each call.) A model inside a
model is one layer, so its dense layers are not cut.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import keras
import tensorflow as tf

from overlap_train.scheduling.calls import Call, elements, tensor_bytes
from overlap_train.scheduling.graph import Work

__all__ = ["cut_dense_call"]

# Below, what a call costs is more than what the pieces save.
_LEAST_PARAMETERS = 1 << 20

# Whatever the number of columns, such rows begin at multiples of 64 bytes: TensorFlow slices there in place.
_ROW_MULTIPLE = 16


def cut_dense_call(call: Call, pieces: int) -> list[Call]:
    """Cuts a call of a large dense layer by the rows of its kernel.

    Args:
        call: of any layer.
        pieces: how many at most.

    Returns:
        The pieces and the call that adds them up; or the call itself, if it is not one of exactly
        `keras.layers.Dense`, has fewer than 2^20 weights, is quantised, has LoRA weights, or computes in
        half precision, to which each partial sum would be rounded.
    """
    layer = call.operation
    bounds = _bounds(layer, pieces)
    if len(bounds) < 3:
        return [call]
    (x,), (y,) = call.inputs, call.outputs
    partial = [keras.KerasTensor(y.shape, y.dtype) for _ in bounds[1:]]
    cut = [
        Call(
            f"{call.name}/{number}",
            layer,
            (x,),
            (tensor,),
            _piece_work(call, first, stop),
            _piece(layer, first, stop),
            alone=True,
        )
        for number, (tensor, (first, stop)) in enumerate(
            zip(partial, itertools.pairwise(bounds), strict=True)
        )
    ]
    produced = elements(y.shape[1:])
    moved = tensor_bytes(y) * (
        len(partial) + 3
    )  # the sum reads all and writes; bias and activation do once more
    work = Work("merge", produced * (len(partial) + 1), moved, operations=2)
    return [*cut, replace(call, name=f"{call.name}/sum", inputs=tuple(partial), work=work, run=_join(layer))]


def _bounds(layer: Any, pieces: int) -> list[int]:
    """The rows at which the pieces begin, and the end; one piece if the layer is not to be cut."""
    if pieces < 2 or type(layer) is not keras.layers.Dense:
        return [0, 0]
    if layer.quantization_mode or layer.lora_enabled or layer.compute_dtype not in ("float32", "float64"):
        return [0, 0]
    if elements(layer.kernel.shape) < _LEAST_PARAMETERS:
        return [0, 0]
    rows = layer.kernel.shape[0]
    blocks = -(-rows // _ROW_MULTIPLE)
    pieces = min(pieces, blocks)
    return [min(rows, blocks * n // pieces * _ROW_MULTIPLE) for n in range(pieces + 1)]


def _piece(layer: Any, first: int, stop: int) -> Callable[[Sequence[Any]], Sequence[Any]]:
    def run(values: Sequence[Any]) -> Sequence[Any]:
        dtype = layer.compute_dtype
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


def _join(layer: Any) -> Callable[[Sequence[Any]], Sequence[Any]]:
    def run(values: Sequence[Any]) -> Sequence[Any]:
        total = tf.add_n(list(values))
        if layer.use_bias:
            total = total + tf.cast(tf.convert_to_tensor(layer.bias), layer.compute_dtype)
        return [layer.activation(total) if layer.activation is not None else total]

    return run


def _piece_work(call: Call, first: int, stop: int) -> Work:
    (x,), (y,) = call.inputs, call.outputs
    kernel = call.operation.kernel
    share = (stop - first) / kernel.shape[0]
    positions = elements(y.shape[1:-1])
    weight_bytes = call.work.weight_bytes * share
    flops = 2.0 * positions * (stop - first) * kernel.shape[1]
    return Work("dense", flops, share * tensor_bytes(x) + tensor_bytes(y), weight_bytes)
