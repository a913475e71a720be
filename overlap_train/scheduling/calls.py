"""The calls of layers that make up a functional Keras model, and what each costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from overlap_train._keras import models as keras_models
from overlap_train.scheduling.graph import Work, merge_work
from overlap_train.scheduling.products import Product

__all__ = ["Call", "Runner", "calls_of", "elements", "tensor_bytes", "work_of"]


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
        for node in keras_models.graph_nodes(functional)
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
