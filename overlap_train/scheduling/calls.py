"""The calls of layers that make up a functional Keras model, what each costs, and large ones cut into pieces.

A request that is alone keeps one core busy, since its network has no other layer ready. In pieces a large
convolution or dense layer is moldable (Feitelson and Rudolph 1996): whether it runs whole or in pieces, and
where, is decided when it could begin.

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
import math
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from overlap_train._keras import models as keras_models
from overlap_train.scheduling.graph import Work, merge_work

__all__ = ["Call", "calls_of", "constant_pieces", "cut_call", "elements", "tensor_bytes", "work_of"]


_CONVOLUTIONS = (
    keras.layers.Conv1D,
    keras.layers.Conv2D,
    keras.layers.Conv3D,
    keras.layers.Conv1DTranspose,
    keras.layers.Conv2DTranspose,
    keras.layers.Conv3DTranspose,
    keras.layers.SeparableConv1D,
    keras.layers.SeparableConv2D,
)
_DEPTHWISE = (keras.layers.DepthwiseConv1D, keras.layers.DepthwiseConv2D)
_KINDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("dense", ("Dense", "EinsumDense")),
    (
        "norm",
        ("BatchNormalization", "LayerNormalization", "GroupNormalization", "Normalization", "Rescaling"),
    ),
    ("activation", ("Activation", "ReLU", "LeakyReLU", "PReLU", "ELU", "Softmax")),
    ("pool", tuple(f"{name}{n}D" for name in ("MaxPooling", "AveragePooling") for n in (1, 2, 3))),
    ("reduce", tuple(f"Global{name}Pooling{n}D" for name in ("Max", "Average") for n in (1, 2, 3))),
    ("merge", ("Add", "Multiply", "Concatenate", "Average", "Maximum", "Subtract", "Minimum")),
    ("reshape", ("Flatten", "Reshape", "Permute", "ZeroPadding2D", "Cropping2D", "Dropout", "InputLayer")),
)
_KIND_OF = {name: kind for kind, names in _KINDS for name in names}


@dataclass(frozen=True)
class Call:
    """One call of a layer, or a piece of one."""

    name: str  # of the layer; repeats where a layer is called again
    operation: Any
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    work: Work  # for one example
    run: Callable[[Sequence[Any]], Sequence[Any]]
    alone: bool = False  # not to be merged with its neighbours
    whole: Call | None = None  # of a call that joins pieces: the call that they were cut from


def calls_of(functional: Any) -> list[Call]:
    """Return the calls of a functional model in the order in which Keras makes them."""
    return [
        Call(
            node.operation.name,
            node.operation,
            tuple(node.input_tensors),
            tuple(node.outputs),
            work_of(node.operation, node.input_tensors, node.outputs),
            _runner(node),
        )
        for node in keras_models.graph_nodes(functional)
    ]


def _runner(node: Any) -> Callable[[Sequence[Any]], Sequence[Any]]:
    def run(values: Sequence[Any]) -> Sequence[Any]:
        by_tensor = {id(tensor): value for tensor, value in zip(node.input_tensors, values, strict=True)}
        args, kwargs = node.arguments.fill_in(by_tensor)
        if getattr(node.operation, "_call_has_training_arg", False):
            kwargs["training"] = False
        return list(keras.tree.flatten(node.operation(*args, **kwargs)))

    return run


def elements(shape: Sequence[int | None]) -> int:
    """Return how many numbers a tensor has; an unknown size counts as one."""
    return math.prod(size or 1 for size in shape)


def tensor_bytes(tensor: Any) -> int:
    """The size of one example of a symbolic tensor."""
    return elements(tensor.shape[1:]) * int(tf.as_dtype(tensor.dtype).size)


def work_of(operation: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> Work:
    """FLOPs and bytes of one call of a layer on one example."""
    nested = getattr(operation, "_functional", None) or operation
    if hasattr(nested, "_nodes_by_depth"):
        works = [
            work_of(node.operation, node.input_tensors, node.outputs)
            for node in keras_models.graph_nodes(nested)
        ]
        if works:
            return merge_work(works)
    weights = getattr(operation, "weights", [])
    weight_bytes = sum(elements(w.shape) * tf.as_dtype(w.dtype).size for w in weights)
    moved_bytes = sum(map(tensor_bytes, (*inputs, *outputs)))
    numbers = sum(elements(tensor.shape[1:]) for tensor in outputs)
    kind = _KIND_OF.get(type(operation).__name__, "other")
    flops = float(numbers)
    if isinstance(operation, _CONVOLUTIONS):
        kind, flops = "conv", sum(_convolution_flops(operation, w, outputs[0]) for w in weights)
    elif isinstance(operation, _DEPTHWISE):
        kind, flops = "depthwise", 2.0 * numbers * math.prod(operation.kernel_size)
    elif kind == "dense":
        rows = numbers / max(outputs[0].shape[-1] or 1, 1)
        flops = 2.0 * rows * sum(elements(w.shape) for w in weights)
    return Work(kind, flops, float(moved_bytes), float(weight_bytes))


def _convolution_flops(operation: Any, weight: Any, output: Any) -> float:
    """Two for each output position and weight; a transposed one counts its larger output, an upper bound."""
    positions = elements(output.shape[1:-1] if operation.data_format == "channels_last" else output.shape[2:])
    return 2.0 * positions * elements(weight.shape)


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
    """Let pieces traced on this thread until the end of the block hold only their part of the weights."""
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


_Runner = Callable[[Sequence[Any]], Sequence[Any]]


def _cut_dense(call: Call, bounds: Sequence[int]) -> list[Call]:
    """Give each piece some of the inputs of a dense layer and their rows of the kernel."""
    layer, (x,), (y,) = call.operation, call.inputs, call.outputs
    dtype, (inputs, units) = layer.compute_dtype, layer.kernel.shape

    def piece(first: int, stop: int) -> tuple[Any, Work, _Runner]:
        def run(values: Sequence[Any]) -> Sequence[Any]:
            if _constant.get():
                kernel = tf.constant(_value(layer.kernel)[first:stop], dtype)
            else:
                kernel = tf.cast(kernel_rows(layer.kernel, first, stop), dtype)
            return [keras.ops.matmul(tf.cast(values[0], dtype)[..., first:stop], kernel)]

        share = (stop - first) / inputs
        flops = 2.0 * elements(y.shape[1:-1]) * (stop - first) * units
        moved = share * tensor_bytes(x) + tensor_bytes(y)
        work = Work("dense", flops, moved, call.work.weight_bytes * share)
        return keras.KerasTensor(y.shape, y.dtype), work, run

    def join(values: Sequence[Any]) -> Sequence[Any]:
        total = tf.add_n(list(values))
        if layer.use_bias:
            total = total + tf.cast(tf.convert_to_tensor(layer.bias), dtype)
        return [layer.activation(total) if layer.activation is not None else total]

    # The sum reads all and writes; bias and activation do once more.
    pieces = len(bounds) - 1
    work = Work("merge", elements(y.shape[1:]) * (pieces + 1), tensor_bytes(y) * (pieces + 3), operations=2)
    return _in_pieces(call, bounds, piece, "sum", work, join)


def _cut_convolution(call: Call, bounds: Sequence[int]) -> list[Call]:
    """Give each piece some of the output channels of a convolution."""
    layer, (x,), (y,) = call.operation, call.inputs, call.outputs
    dtype = layer.compute_dtype

    def piece(first: int, stop: int) -> tuple[Any, Work, _Runner]:
        def run(values: Sequence[Any]) -> Sequence[Any]:
            if _constant.get():
                kernel = tf.constant(_value(layer.kernel)[..., first:stop])
            else:
                with tf.device(layer.kernel.value.device):
                    kernel = tf.convert_to_tensor(layer.kernel)[..., first:stop]
            y = layer.convolution_op(tf.cast(values[0], dtype), tf.cast(kernel, dtype))
            if layer.use_bias:
                y = tf.nn.bias_add(y, tf.cast(tf.convert_to_tensor(layer.bias)[first:stop], dtype))
            return [layer.activation(y) if layer.activation is not None else y]

        share = (stop - first) / layer.filters
        moved = tensor_bytes(x) + share * tensor_bytes(y)
        work = Work("conv", call.work.flops * share, moved, call.work.weight_bytes * share)
        return keras.KerasTensor((*y.shape[:-1], stop - first), y.dtype), work, run

    def join(values: Sequence[Any]) -> Sequence[Any]:
        return [tf.concat(list(values), axis=-1)]

    return _in_pieces(call, bounds, piece, "channels", Work("merge", 0.0, 2.0 * tensor_bytes(y)), join)


def _in_pieces(
    call: Call,
    bounds: Sequence[int],
    piece: Callable[[int, int], tuple[Any, Work, _Runner]],
    joins: str,
    work: Work,
    join: _Runner,
) -> list[Call]:
    """Return the pieces between some bounds and the call that joins them, or the call if it is one piece."""
    if len(bounds) < 3:
        return [call]
    pieces = []
    for number, (first, stop) in enumerate(itertools.pairwise(bounds)):
        tensor, piece_work, run = piece(first, stop)
        name = f"{call.name}/{number}"
        pieces.append(Call(name, call.operation, call.inputs, (tensor,), piece_work, run, alone=True))
    inputs = tuple(part.outputs[0] for part in pieces)
    name = f"{call.name}/{joins}"
    return [*pieces, replace(call, name=name, inputs=inputs, work=work, run=join, whole=call)]


def kernel_rows(kernel: Any, first: int, stop: int) -> tf.Tensor:
    """Return rows of a kernel, on its own memory if they begin and end at multiples of 64 bytes.

    TensorFlow would copy rows of a matrix whose columns are no multiple of 16; of a vector it checks only
    where the slice begins and ends. It is made on the variable's device, so that only these rows are moved.
    """
    columns = kernel.shape[1]
    with tf.device(kernel.value.device):
        flat = tf.reshape(tf.convert_to_tensor(kernel), [-1])
        return tf.reshape(flat[first * columns : stop * columns], [stop - first, columns])
