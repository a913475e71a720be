"""Any Keras model as a `LayerGraph` of its layers.

Functional and Sequential models are split at every layer; what cannot be split (a subclassed model, or
a network whose layers pass masks beside their tensors) becomes a graph of one layer. Keras's public
API does not show the graph of a functional model, so `_nodes` is the one place that reads its private
part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from overlap_train.scheduling.graph import REQUEST, Layer, LayerGraph, Port, Work
from overlap_train.scheduling.segments import merge_work

__all__ = ["SplitModel", "split_model"]

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
class SplitModel:
    """A Keras model and its graph.

    Attributes:
        model: as it was given.
        graph: single layers; `runs` is empty, `function` makes them.
        input_specs: of each tensor of a request, with None for the batch.
        function: given the tensors that a segment reads and returns and its layers, the Python
            function from the former to the latter, to be traced.
    """

    model: Any
    graph: LayerGraph
    input_specs: tuple[tf.TensorSpec, ...]
    function: Callable[[Sequence[Port], range, Sequence[Port]], Callable[..., list[Any]]]
    spec: Callable[[Port], tf.TensorSpec]


def split_model(
    model: Any, *, name: str | None = None, input_specs: Sequence[tf.TensorSpec] = ()
) -> SplitModel:
    """Splits a model into layers.

    Args:
        model: a built Keras model.
        name: of the network; the model's own unless given.
        input_specs: needed for a subclassed model only: the shape and dtype of each input, with None
            for the batch.

    Raises:
        ValueError: a subclassed model without `input_specs`, or a Sequential one that is not built.
    """
    name = name or model.name
    functional = getattr(model, "_functional", None) or model
    if hasattr(functional, "_nodes_by_depth") and not _has_masks(model):
        return _split_functional(model, functional, name)
    return _one_layer(model, name, tuple(input_specs))


def _nodes(functional: Any) -> list[Any]:
    """The calls of layers that make up a functional model, in the order in which Keras runs them."""
    depths = sorted(functional._nodes_by_depth, reverse=True)
    return [
        node
        for depth in depths
        for node in functional._nodes_by_depth[depth]
        if node.operation is not None and not node.is_input
    ]


def _has_masks(model: Any) -> bool:
    return any(
        isinstance(layer, keras.layers.Masking) or getattr(layer, "mask_zero", False)
        for layer in model._flatten_layers()
    )


def _split_functional(model: Any, functional: Any, name: str) -> SplitModel:
    nodes = _nodes(functional)
    ports: dict[int, Port] = {id(x): Port(REQUEST, n) for n, x in enumerate(functional.inputs)}
    tensors: dict[Port, Any] = {Port(REQUEST, n): x for n, x in enumerate(functional.inputs)}
    used: dict[str, int] = {}
    layers = []
    for index, node in enumerate(nodes):
        for number, tensor in enumerate(node.outputs):
            ports[id(tensor)] = Port(index, number)
            tensors[Port(index, number)] = tensor
        count = used[node.operation.name] = used.get(node.operation.name, 0) + 1
        layer_name = node.operation.name + (f"#{count}" if count > 1 else "")
        inputs = tuple(ports[id(tensor)] for tensor in node.input_tensors)
        layers.append(
            Layer(
                f"{name}/{layer_name}",
                _work(node.operation, node.input_tensors, node.outputs),
                inputs,
                tuple(_tensor_bytes(tensor) for tensor in node.outputs),
            )
        )
    if not layers:
        return _one_layer(model, name, tuple(_spec(x) for x in functional.inputs))
    graph = LayerGraph(
        layers,
        [ports[id(tensor)] for tensor in functional.outputs],
        input_bytes=[_tensor_bytes(x) for x in functional.inputs],
        name=name,
    )

    def function(reads: Sequence[Port], members: range, returns: Sequence[Port]) -> Callable[..., list[Any]]:
        def segment(*args: Any) -> list[Any]:
            values = {id(tensors[port]): value for port, value in zip(reads, args, strict=True)}
            for index in members:
                _call(nodes[index], values)
            return [values[id(tensors[port])] for port in returns]

        return segment

    return SplitModel(
        model, graph, tuple(_spec(x) for x in functional.inputs), function, lambda port: _spec(tensors[port])
    )


def _call(node: Any, values: dict[int, Any]) -> None:
    args, kwargs = node.arguments.fill_in(values)
    if getattr(node.operation, "_call_has_training_arg", False):
        kwargs["training"] = False
    outputs = keras.tree.flatten(node.operation(*args, **kwargs))
    for tensor, value in zip(node.outputs, outputs, strict=True):
        values[id(tensor)] = value


def _one_layer(model: Any, name: str, input_specs: tuple[tf.TensorSpec, ...]) -> SplitModel:
    if not input_specs and getattr(model, "inputs", None):
        input_specs = tuple(_spec(x) for x in model.inputs)
    if not input_specs:
        raise ValueError(
            f"{name}: a subclassed model does not say what it reads; pass input_specs=(tf.TensorSpec(...),)"
        )

    def segment(*args: Any) -> list[Any]:
        return list(keras.tree.flatten(model(_packed(model, args), training=False)))

    example = [keras.KerasTensor(spec.shape, spec.dtype.name) for spec in input_specs]
    outputs = keras.tree.flatten(model.compute_output_spec(_packed(model, example)))
    work = _work(model, example, outputs)
    layer = Layer(
        f"{name}/all",
        work,
        tuple(Port(REQUEST, n) for n in range(len(input_specs))),
        tuple(_tensor_bytes(x) for x in outputs),
    )
    graph = LayerGraph(
        [layer],
        [Port(0, n) for n in range(len(outputs))],
        input_bytes=[_tensor_bytes(x) for x in example],
        name=name,
    )
    known = {Port(REQUEST, n): spec for n, spec in enumerate(input_specs)}
    known |= {Port(0, n): _spec(x) for n, x in enumerate(outputs)}
    return SplitModel(model, graph, input_specs, lambda reads, members, returns: segment, known.__getitem__)


def _packed(model: Any, flat: Sequence[Any]) -> Any:
    structure = getattr(model, "_inputs_struct", None)
    if structure is not None:
        return keras.tree.pack_sequence_as(structure, list(flat))
    return flat[0] if len(flat) == 1 else list(flat)


def _spec(tensor: Any) -> tf.TensorSpec:
    return tf.TensorSpec((None, *tensor.shape[1:]), tensor.dtype)


def _elements(shape: Sequence[int | None]) -> int:
    return math.prod(size or 1 for size in shape)


def _tensor_bytes(tensor: Any) -> int:
    return _elements(tensor.shape[1:]) * int(tf.as_dtype(tensor.dtype).size)


def _work(operation: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> Work:
    """FLOPs and bytes of one call of a layer on one example."""
    nested = getattr(operation, "_functional", None) or operation
    if hasattr(nested, "_nodes_by_depth"):
        works = [_work(node.operation, node.input_tensors, node.outputs) for node in _nodes(nested)]
        if works:
            return merge_work(works)
    weights = getattr(operation, "weights", [])
    weight_bytes = sum(_elements(w.shape) * tf.as_dtype(w.dtype).size for w in weights)
    moved_bytes = sum(map(_tensor_bytes, (*inputs, *outputs)))
    produced = sum(_elements(tensor.shape[1:]) for tensor in outputs)
    kind = _KIND_OF.get(type(operation).__name__, "other")
    flops = float(produced)
    if isinstance(operation, _CONVOLUTIONS):
        kind, flops = "conv", sum(_convolution_flops(operation, w, outputs[0]) for w in weights)
    elif isinstance(operation, _DEPTHWISE):
        kind, flops = "depthwise", 2.0 * produced * math.prod(operation.kernel_size)
    elif kind == "dense":
        rows = produced / max(outputs[0].shape[-1] or 1, 1)
        flops = 2.0 * rows * sum(_elements(w.shape) for w in weights)
    return Work(kind, flops, float(moved_bytes), float(weight_bytes))


def _convolution_flops(operation: Any, weight: Any, output: Any) -> float:
    """Two for each output position and weight; a transposed one counts its larger output, an upper bound."""
    positions = _elements(
        output.shape[1:-1] if operation.data_format == "channels_last" else output.shape[2:]
    )
    return 2.0 * positions * _elements(weight.shape)
