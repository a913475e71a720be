"""The calls of layers that make up a functional Keras model: what each computes, costs, and can take in.

For inference a convolution or a dense layer is a `Product`, with constant weights and with what follows it
folded in: a BatchNormalization is a factor and an offset for each channel, so it goes into the kernel and the
bias. The layers themselves stay as they are.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from overlap_train._keras import graphs as keras_graphs
from overlap_train.conv import tiled_conv2d
from overlap_train.scheduling.graph import Work, merge_work

Runner = Callable[[Sequence[Any]], Sequence[Any]]
"""Computes the outputs of a call from its inputs, while it is traced."""


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
_DENSE = (keras.layers.Dense, keras.layers.EinsumDense)

_LINEAR = (None, keras.activations.linear)
_ELEMENTWISE = frozenset(
    getattr(keras.activations, name)
    for name in ("relu", "relu6", "leaky_relu", "elu", "selu", "gelu", "silu", "sigmoid", "tanh")
).union(_LINEAR)
_PRODUCTS = (keras.layers.Conv2D, keras.layers.DepthwiseConv2D, keras.layers.Dense)


@dataclass(frozen=True, eq=False)
class Product:
    """`activation(layer's product · scale + offset + residual)`, of a layer and what was folded into it."""

    layer: Any
    norm: Any = None  # a BatchNormalization
    activation: Callable[[Any], Any] | None = None
    adds: bool = False  # a residual, its second input

    @classmethod
    def of(cls, layer: Any) -> Product | None:
        """Return the product of a layer, or None if a custom call or other weights might compute it."""
        if not _is_stock(layer, *_PRODUCTS) or getattr(layer, "quantization_mode", None):
            return None
        if getattr(layer, "lora_enabled", False) or "convolution_op" in vars(layer):
            return None
        if getattr(layer, "data_format", "channels_last") != "channels_last":
            return None
        if type(layer) is keras.layers.Conv2D and (layer.groups != 1 or layer.dilation_rate != (1, 1)):
            return None
        return cls(layer, activation=layer.activation)

    @property
    def is_convolution(self) -> bool:
        """Whether the layer is a `Conv2D`."""
        return type(self.layer) is keras.layers.Conv2D

    @property
    def is_elementwise(self) -> bool:
        """Whether the activation computes each number by itself, so that it can be applied to a part."""
        return self.activation in _ELEMENTWISE

    def followed_by(self, layer: Any, *, like: Any, other: Any) -> Product | None:
        """Return this product with the layer behind it folded in, or None if that cannot be.

        The layer reads `like`, the symbolic output of this product, and perhaps a second tensor, `other`.
        """
        if self.activation not in _LINEAR:
            return None
        if other is not None:
            fits = _is_stock(layer, keras.layers.Add) and other.shape == like.shape and not self.adds
            return replace(self, adds=True) if fits and other.dtype == like.dtype else None
        if _is_stock(layer, keras.layers.BatchNormalization):
            fits = self.norm is None and not self.adds and layer.axis in (-1, len(like.shape) - 1)
            return replace(self, norm=layer) if fits else None
        if _is_stock(layer, keras.layers.Activation):
            return replace(self, activation=layer.activation)
        if _is_stock(layer, keras.layers.ReLU):
            is_plain = layer.max_value is None and not layer.negative_slope and not layer.threshold
            return replace(self, activation=keras.activations.relu if is_plain else layer)
        return None

    def weights(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the kernel and the bias at this moment, with what was folded into them."""
        layer, norm = self.layer, self.norm
        with tf.init_scope():  # out of the function that is being traced
            kernel = np.asarray(layer.kernel)
            channels = kernel.shape[-2:] if type(layer) is keras.layers.DepthwiseConv2D else kernel.shape[-1:]
            bias = np.asarray(layer.bias) if layer.use_bias else np.zeros(np.prod(channels), kernel.dtype)
            if norm is not None:
                # In double precision, as folding is to add no error of its own.
                scale = 1 / np.sqrt(np.asarray(norm.moving_variance, np.float64) + norm.epsilon)
                scale = scale * np.asarray(norm.gamma) if norm.scale else scale
                bias = (bias - np.asarray(norm.moving_mean)) * scale
                bias = bias + np.asarray(norm.beta) if norm.center else bias
                kernel = kernel * scale.reshape(channels)
        return kernel.astype(layer.compute_dtype), bias.astype(layer.compute_dtype)

    def __call__(self, x: tf.Tensor, residual: tf.Tensor | None = None) -> tf.Tensor:
        """Trace the product of a tensor `[N, ...]`, and the residual that is added to it."""
        kernel, bias = self.weights()
        x = tf.cast(x, self.layer.compute_dtype)
        if residual is None:
            return self.multiply(x, kernel, bias)
        y = replace(self, activation=None).multiply(x, kernel, bias) + tf.cast(residual, x.dtype)
        return self.activate(y)

    def multiply(self, x: tf.Tensor, kernel: np.ndarray, bias: np.ndarray, **changed: Any) -> tf.Tensor:
        """Trace the product with these weights or a part of them, and changed options of a convolution."""
        layer = self.layer
        with tf.init_scope():  # captured: constants of a graph are copied many times
            kernel, bias = tf.constant(kernel), tf.constant(bias)
        if self.is_convolution:
            relu = self.activation is keras.activations.relu
            options = {"strides": layer.strides, "padding": layer.padding} | changed
            y = tiled_conv2d(x, kernel, bias, activation="relu" if relu else None, **options)
            return y if relu else self.activate(y)
        if type(layer) is keras.layers.Dense:
            return self.activate(keras.ops.matmul(x, kernel) + bias)
        y = tf.nn.depthwise_conv2d(
            x, kernel, [1, *layer.strides, 1], layer.padding.upper(), dilations=layer.dilation_rate
        )
        return self.activate(tf.nn.bias_add(y, bias))

    def activate(self, y: tf.Tensor) -> tf.Tensor:
        """Trace the activation."""
        return y if self.activation is None else self.activation(y)


def _is_stock(layer: Any, *kinds: type) -> bool:
    """Whether a layer is of one of these classes itself and computes in single or double precision."""
    return (
        type(layer) in kinds
        and "call" not in vars(layer)
        and layer.compute_dtype in ("float32", "float64")
        and layer.compute_dtype == layer.variable_dtype
    )


@dataclass(frozen=True)
class Call:
    """One call of a layer, or a piece of one."""

    name: str  # of the layer; repeats where a layer is called again
    operation: Any
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    work: Work  # for one example
    run: Runner
    product: Product | None = None  # of a convolution or a dense layer: what is computed, to be cut
    alone: bool = False  # not to be merged with its neighbours


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
            Product.of(node.operation),
        )
        for node in keras_graphs.graph_nodes(functional)
    ]


def _runner(node: Any) -> Runner:
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
            for node in keras_graphs.graph_nodes(nested)
        ]
        if works:
            return merge_work(works)
    weights = getattr(operation, "weights", [])
    weight_bytes = sum(elements(w.shape) * tf.as_dtype(w.dtype).size for w in weights)
    moved_bytes = sum(map(tensor_bytes, (*inputs, *outputs)))
    numbers = sum(elements(tensor.shape[1:]) for tensor in outputs)
    kind, flops = "other", float(numbers)
    if isinstance(operation, _CONVOLUTIONS):
        kind, flops = "conv", sum(_convolution_flops(operation, w, outputs[0]) for w in weights)
    elif isinstance(operation, _DEPTHWISE):
        kind, flops = "depthwise", 2.0 * numbers * math.prod(operation.kernel_size)
    elif isinstance(operation, _DENSE):
        kind, rows = "dense", numbers / max(outputs[0].shape[-1] or 1, 1)
        flops = 2.0 * rows * sum(elements(w.shape) for w in weights)
    return Work(kind, flops, float(moved_bytes), float(weight_bytes))


def _convolution_flops(operation: Any, weight: Any, output: Any) -> float:
    """Two for each output position and weight; a transposed one counts its larger output, an upper bound."""
    positions = elements(output.shape[1:-1] if operation.data_format == "channels_last" else output.shape[2:])
    return 2.0 * positions * elements(weight.shape)


def fold_calls(calls: Sequence[Call], outputs: Sequence[Any], *, residuals: bool = True) -> list[Call]:
    """Fold into each product the BatchNormalization, addition (`residuals`) and activation behind it.

    A call with what was folded into it has the outputs of the last of them, and is made in its place; the
    symbolic `outputs` of the model stay.
    """
    readers: dict[int, list[int]] = defaultdict(list)
    for index, call in enumerate(calls):
        for tensor in call.inputs:
            readers[id(tensor)].append(index)
    for tensor in outputs:
        readers[id(tensor)].append(len(calls))
    left: dict[int, Call] = dict(enumerate(calls))
    for index, call in enumerate(calls):
        if index not in left or call.product is None:
            continue
        # The layer itself may run on our convolution too.
        product = call.product
        run = (lambda values, product=product: [product(*values)]) if product.is_convolution else call.run
        folded, members = replace(call, run=run), [index]
        while grown := _grown(folded, calls, readers, left, residuals):
            folded, after = grown
            members.append(after)
        for member in members:
            del left[member]
        left[members[-1]] = folded
    return [left[index] for index in sorted(left)]


def _grown(
    call: Call, calls: Sequence[Call], readers: dict[int, list[int]], left: dict[int, Call], residuals: bool
) -> tuple[Call, int] | None:
    """Return a call with the only reader of its output folded in, and which that is, or None."""
    (tensor,) = call.outputs
    only = readers[id(tensor)]
    after = left.get(only[0])
    if len(only) != 1 or after is None or call.product is None:
        return None
    if after is not calls[only[0]]:  # another product has taken it in
        return None
    others = [other for other in after.inputs if other is not tensor]
    if len(others) > (1 if residuals else 0) or len(after.outputs) != 1:
        return None
    other = others[0] if others else None
    product = call.product.followed_by(after.operation, like=tensor, other=other)
    if product is None:
        return None
    works = (call.work, after.work)
    work = Work(
        call.work.kind,
        sum(work.flops for work in works),
        # What lies between the two is not written and read again.
        sum(work.moved_bytes for work in works) - 2.0 * tensor_bytes(tensor),
        sum(work.weight_bytes for work in works),
    )
    grown = Call(
        f"{call.name.partition('..')[0]}..{after.name}",
        call.operation,
        (*call.inputs, *others),
        after.outputs,
        work,
        lambda values: [product(*values)],
        product,
    )
    return grown, only[0]


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
