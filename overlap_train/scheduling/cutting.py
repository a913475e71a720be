"""Large convolutions and dense layers cut into pieces of any size, which can run at the same time.

A request that is alone keeps one core busy, since its network has no other layer ready. Each piece of a layer
computes some of the output channels, or some rows of the output image (muLayer, Kim et al., EuroSys 2019);
the join puts them together. A model inside a model is one layer, so what is in it is not cut.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import keras
import tensorflow as tf

from overlap_train.scheduling.calls import Call, Product, Runner, elements, tensor_bytes
from overlap_train.scheduling.graph import Work

# Below, what a call costs is more than what the pieces save.
_LEAST_PARAMETERS = 1 << 20
_LEAST_FLOPS = 1 << 26

_CHANNELS = 8  # which fill a vector register


def is_large(call: Call) -> bool:
    """Whether a call can be cut and is worth it: a dense layer of 2^20 weights, a `Conv2D` of 2^26 FLOPs."""
    product = call.product
    if product is None or product.adds:
        return False
    if type(product.layer) is keras.layers.Dense:
        return elements(product.layer.kernel.shape) >= _LEAST_PARAMETERS
    return product.is_convolution and call.work.flops >= _LEAST_FLOPS


def cut_call(call: Call, shares: Sequence[float]) -> list[Call]:
    """Return pieces of about these shares of a call's output and the call that joins them."""
    product = call.product
    if product is None or len(shares) < 2:
        return [call]
    (x,), (y,) = call.inputs, call.outputs
    by_rows = product.is_convolution and (
        tensor_bytes(x) > call.work.weight_bytes or y.shape[-1] < _CHANNELS * len(shares)
    )
    by_rows = by_rows and None not in (*x.shape[1:], *y.shape[1:])
    axis = 1 if by_rows else len(y.shape) - 1
    length = y.shape[axis]
    bounds = _bounds(length, shares, 1 if by_rows else _CHANNELS)
    if len(bounds) < 3:
        return [call]
    # An activation that mixes channels, such as softmax, needs all of them.
    part = product if product.is_elementwise else replace(product, activation=None)

    def join(values: Sequence[Any]) -> Sequence[Any]:
        joined = tf.concat(list(values), axis=axis)
        return [joined if part is product else product.activate(joined)]

    pieces = [
        _piece(call, part, f"{call.name}/{number}", axis, first, stop)
        for number, (first, stop) in enumerate(itertools.pairwise(bounds))
    ]
    parts = tuple(piece.outputs[0] for piece in pieces)
    work = Work("merge", 0.0, 2.0 * tensor_bytes(y))
    return [*pieces, replace(call, name=f"{call.name}/join", inputs=parts, work=work, run=join)]


def _piece(call: Call, product: Product, name: str, axis: int, first: int, stop: int) -> Call:
    """Return the call that computes a part of the output."""
    (x,), (y,) = call.inputs, call.outputs
    share, by_rows = (stop - first) / y.shape[axis], axis == 1 and product.is_convolution
    shape = (*y.shape[:axis], stop - first, *y.shape[axis + 1 :])
    read = tensor_bytes(x) * (share if by_rows else 1.0)
    weight_bytes = call.work.weight_bytes * (1.0 if by_rows else share)
    work = Work(call.work.kind, call.work.flops * share, read + share * tensor_bytes(y), weight_bytes)
    run = _rows(product, x.shape, first, stop) if by_rows else _channels(product, first, stop)
    tensor = keras.KerasTensor(shape, y.dtype)
    return Call(name, call.operation, call.inputs, (tensor,), work, run, alone=True)


def _channels(product: Product, first: int, stop: int) -> Runner:
    def run(values: Sequence[Any]) -> Sequence[Any]:
        kernel, bias = product.weights()
        x = tf.cast(values[0], product.layer.compute_dtype)
        return [product.multiply(x, kernel[..., first:stop], bias[first:stop])]

    return run


def _rows(product: Product, shape: Sequence[int], first: int, stop: int) -> Runner:
    """Return what computes the rows of the output from `first` to `stop`, with their part of the padding."""
    layer = product.layer
    (height, size, stride), across = ((shape[n + 1], layer.kernel_size[n], layer.strides[n]) for n in (0, 1))
    above, _ = _padding(layer.padding, height, size, stride)
    begin, end = first * stride - above, (stop - 1) * stride - above + size
    padding = [(0, 0), (max(-begin, 0), max(end - height, 0)), _padding(layer.padding, *across), (0, 0)]

    def run(values: Sequence[Any]) -> Sequence[Any]:
        x = tf.cast(values[0], layer.compute_dtype)[:, max(begin, 0) : min(end, height)]
        return [product.multiply(tf.pad(x, padding), *product.weights(), padding="valid")]

    return run


def _padding(padding: str, length: int, size: int, stride: int) -> tuple[int, int]:
    """Return how many zeros TensorFlow puts before and behind a dimension."""
    if padding == "valid":
        return 0, 0
    total = max((-(-length // stride) - 1) * stride + size - length, 0)
    return total // 2, total - total // 2


def _bounds(length: int, shares: Sequence[float], multiple: int) -> list[int]:
    """Where the pieces begin, and the end, at multiples of some number; pieces of no length are left out."""
    blocks, total = -(-length // multiple), sum(shares)
    ends = [round(blocks * end / total) for end in itertools.accumulate(shares)]
    return sorted({0, *(min(length, multiple * end) for end in ends)})
