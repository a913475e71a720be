"""Large convolutions and dense layers in pieces that run at the same time, on several cores or devices.

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
import functools
import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
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


def constant_pieces() -> contextlib.ExitStack:
    """Pieces that are traced meanwhile have their own part of the weights built in, and not all of them."""
    token = _constant.set(True)
    undo = contextlib.ExitStack()
    undo.callback(_constant.reset, token)
    return undo


def _value(variable: Any) -> np.ndarray:
    with tf.init_scope():  # out of the function that is being traced
        return np.asarray(variable)


def cut_call(call: Call, pieces: int) -> list[Call]:
    """Cut a call of a large layer into at most `pieces`.

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
        return _DenseCut(call, _bounds(layer.kernel.shape[0], pieces)).calls()
    if type(layer) is keras.layers.Conv2D and call.work.flops >= _LEAST_FLOPS and _has_free_channels(layer):
        return _ConvolutionCut(call, _bounds(layer.filters, pieces)).calls()
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


class _Cut(ABC):
    """A call of a layer, cut at some bounds of one of its dimensions."""

    join: str
    """What the join does, in a word that goes into its name."""

    def __init__(self, call: Call, bounds: Sequence[int]) -> None:
        self._call = call
        self._bounds = tuple(itertools.pairwise(bounds))
        self._layer = call.operation
        (self._y,) = call.outputs

    def calls(self) -> list[Call]:
        """Return the pieces and the call that joins them, or the call itself if there is but one piece."""
        call = self._call
        if len(self._bounds) < 2:
            return [call]
        pieces = [
            Call(
                f"{call.name}/{number}",
                self._layer,
                call.inputs,
                (self._partial(first, stop),),
                self._work(first, stop),
                functools.partial(self._piece, first, stop),
                alone=True,
            )
            for number, (first, stop) in enumerate(self._bounds)
        ]
        joined = replace(
            call,
            name=f"{call.name}/{self.join}",
            inputs=tuple(piece.outputs[0] for piece in pieces),
            work=self._join_work(),
            run=self._join,
            whole=call,
        )
        return [*pieces, joined]

    @abstractmethod
    def _partial(self, first: int, stop: int) -> Any:
        """The symbolic tensor that a piece makes."""

    @abstractmethod
    def _work(self, first: int, stop: int) -> Work:
        """What a piece costs for one example."""

    @abstractmethod
    def _piece(self, first: int, stop: int, values: Sequence[Any]) -> Sequence[Any]:
        """Compute a piece from the values of the call's inputs."""

    @abstractmethod
    def _join_work(self) -> Work:
        """What the join costs for one example."""

    @abstractmethod
    def _join(self, values: Sequence[Any]) -> Sequence[Any]:
        """Compute the call's output from those of the pieces."""


class _DenseCut(_Cut):
    """Some of the inputs of a dense layer and their rows of the kernel in each piece."""

    join = "sum"

    def _partial(self, first: int, stop: int) -> Any:
        return keras.KerasTensor(self._y.shape, self._y.dtype)

    def _work(self, first: int, stop: int) -> Work:
        (x,), kernel = self._call.inputs, self._layer.kernel
        share = (stop - first) / kernel.shape[0]
        flops = 2.0 * elements(self._y.shape[1:-1]) * (stop - first) * kernel.shape[1]
        moved = share * tensor_bytes(x) + tensor_bytes(self._y)
        return Work("dense", flops, moved, self._call.work.weight_bytes * share)

    def _piece(self, first: int, stop: int, values: Sequence[Any]) -> Sequence[Any]:
        layer, dtype = self._layer, self._layer.compute_dtype
        if _constant.get():
            kernel = tf.constant(_value(layer.kernel)[first:stop], dtype)
        else:
            kernel = tf.cast(kernel_rows(layer.kernel, first, stop), dtype)
        return [keras.ops.matmul(tf.cast(values[0], dtype)[..., first:stop], kernel)]

    def _join_work(self) -> Work:
        # The sum reads all and writes; bias and activation do once more.
        pieces = len(self._bounds)
        moved = tensor_bytes(self._y) * (pieces + 3)
        return Work("merge", elements(self._y.shape[1:]) * (pieces + 1), moved, operations=2)

    def _join(self, values: Sequence[Any]) -> Sequence[Any]:
        layer = self._layer
        total = tf.add_n(list(values))
        if layer.use_bias:
            total = total + tf.cast(tf.convert_to_tensor(layer.bias), layer.compute_dtype)
        return [layer.activation(total) if layer.activation is not None else total]


def kernel_rows(kernel: Any, first: int, stop: int) -> tf.Tensor:
    """Return rows of a kernel, on its own memory if they begin and end at multiples of 64 bytes.

    Of a matrix TensorFlow would copy them if the columns were not a multiple of 16; of a vector it looks at
    where they begin and end. They are taken where the variable is, so that no more than they go elsewhere.
    """
    columns = kernel.shape[1]
    with tf.device(kernel.value.device):
        flat = tf.reshape(tf.convert_to_tensor(kernel), [-1])
        return tf.reshape(flat[first * columns : stop * columns], [stop - first, columns])


class _ConvolutionCut(_Cut):
    """Some of the output channels of a convolution in each piece."""

    join = "channels"

    def _partial(self, first: int, stop: int) -> Any:
        return keras.KerasTensor((*self._y.shape[:-1], stop - first), self._y.dtype)

    def _work(self, first: int, stop: int) -> Work:
        (x,), work = self._call.inputs, self._call.work
        share = (stop - first) / self._layer.filters
        moved = tensor_bytes(x) + share * tensor_bytes(self._y)
        return Work("conv", work.flops * share, moved, work.weight_bytes * share)

    def _piece(self, first: int, stop: int, values: Sequence[Any]) -> Sequence[Any]:
        layer, dtype = self._layer, self._layer.compute_dtype
        if _constant.get():
            kernel = tf.constant(_value(layer.kernel)[..., first:stop])
        else:
            with tf.device(layer.kernel.value.device):
                kernel = tf.convert_to_tensor(layer.kernel)[..., first:stop]
        y = layer.convolution_op(tf.cast(values[0], dtype), tf.cast(kernel, dtype))
        if layer.use_bias:
            y = tf.nn.bias_add(y, tf.cast(tf.convert_to_tensor(layer.bias)[first:stop], dtype))
        return [layer.activation(y) if layer.activation is not None else y]

    def _join_work(self) -> Work:
        return Work("merge", 0.0, 2.0 * tensor_bytes(self._y))

    def _join(self, values: Sequence[Any]) -> Sequence[Any]:
        return [tf.concat(list(values), axis=-1)]
