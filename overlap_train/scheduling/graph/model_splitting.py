"""Any Keras model as a `LayerGraph` of its layers.

Functional and Sequential models are split at every layer; what cannot be split (a subclassed model, or
a network whose layers pass masks beside their tensors) becomes a graph of one layer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import keras
import tensorflow as tf

from overlap_train.scheduling.graph.calls import Call, calls_of, tensor_bytes, work_of
from overlap_train.scheduling.graph.cutting import cut_call
from overlap_train.scheduling.graph.layers import REQUEST, Layer, LayerGraph, Port

__all__ = ["SplitModel", "split_model"]


MakeFunction = Callable[[Sequence[Port], range, Sequence[Port], bool], Callable[..., list[Any]]]


@dataclass(frozen=True)
class SplitModel:
    """A Keras model and its graph.

    Attributes:
        model: as it was given.
        graph: single layers; `runs` is empty, `function` makes them.
        input_specs: of each tensor of a request, with None for the batch.
        function: given the tensors that a segment reads, its layers, the tensors that it returns, and
            whether its first layer runs in one piece: the Python function from the former to the latter, to
            be traced.
    """

    model: Any
    graph: LayerGraph
    input_specs: tuple[tf.TensorSpec, ...]
    function: MakeFunction
    spec: Callable[[Port], tf.TensorSpec]


def split_model(
    model: Any,
    *,
    name: str | None = None,
    input_specs: Sequence[tf.TensorSpec] = (),
    cut: int = 1,
    only: Container[str] | None = None,
) -> SplitModel:
    """Splits a model into layers.

    Args:
        model: a built Keras model.
        name: of the network; the model's own unless given.
        input_specs: needed for a subclassed model only: the shape and dtype of each input, with None
            for the batch.
        cut: pieces in which large convolutions and dense layers can be run, see `cutting`; nothing is cut in
            a model that stays whole.
        only: the names of the layers that may be cut, as they are in the graph; every large one unless given.

    Raises:
        ValueError: `cut` below 1, a subclassed model without `input_specs`, or a Sequential one that is
            not built.
    """
    if cut < 1:
        raise ValueError(f"cut must be at least 1, got {cut}")
    name = name or model.name
    functional = getattr(model, "_functional", None) or model
    if hasattr(functional, "_nodes_by_depth") and not _has_masks(model):
        return _split_functional(model, functional, name, cut, only)
    return _one_layer(model, name, tuple(input_specs))


def _has_masks(model: Any) -> bool:
    return any(
        isinstance(layer, keras.layers.Masking) or getattr(layer, "mask_zero", False)
        for layer in model._flatten_layers()
    )


def _split_functional(
    model: Any, functional: Any, name: str, cut: int, only: Container[str] | None
) -> SplitModel:
    calls: list[Call] = []
    counts: Counter[str] = Counter()
    for call in calls_of(functional):
        counts[call.name] += 1
        if counts[call.name] > 1:
            call = replace(call, name=f"{call.name}#{counts[call.name]}")
        calls += cut_call(call, cut) if only is None or f"{name}/{call.name}" in only else [call]
    ports: dict[int, Port] = {id(x): Port(REQUEST, n) for n, x in enumerate(functional.inputs)}
    tensors: dict[Port, Any] = {Port(REQUEST, n): x for n, x in enumerate(functional.inputs)}
    layers = []
    for index, call in enumerate(calls):
        for number, tensor in enumerate(call.outputs):
            ports[id(tensor)] = Port(index, number)
            tensors[Port(index, number)] = tensor
        layer = _layer(name, call, ports)
        if call.whole is not None:
            layer = replace(layer, whole=_layer(name, call.whole, ports))
        layers.append(layer)
    if not layers:
        return _one_layer(model, name, tuple(_spec(x) for x in functional.inputs))
    graph = LayerGraph(
        layers,
        [ports[id(tensor)] for tensor in functional.outputs],
        input_bytes=[tensor_bytes(x) for x in functional.inputs],
        name=name,
    )

    def function(
        reads: Sequence[Port], members: range, returns: Sequence[Port], whole: bool
    ) -> Callable[..., list[Any]]:
        def segment(*args: Any) -> list[Any]:
            values = {id(tensors[port]): value for port, value in zip(reads, args, strict=True)}
            for index in members:
                call = calls[index]
                if whole and index == members[0]:
                    call = call.whole or call
                made = call.run([values[id(tensor)] for tensor in call.inputs])
                values.update(zip(map(id, call.outputs), made, strict=True))
            return [values[id(tensors[port])] for port in returns]

        return segment

    return SplitModel(
        model, graph, tuple(_spec(x) for x in functional.inputs), function, lambda port: _spec(tensors[port])
    )


def _layer(name: str, call: Call, ports: Mapping[int, Port]) -> Layer:
    return Layer(
        f"{name}/{call.name}",
        call.work,
        tuple(ports[id(tensor)] for tensor in call.inputs),
        tuple(tensor_bytes(tensor) for tensor in call.outputs),
        alone=call.alone,
    )


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
    work = work_of(model, example, outputs)
    layer = Layer(
        f"{name}/all",
        work,
        tuple(Port(REQUEST, n) for n in range(len(input_specs))),
        tuple(tensor_bytes(x) for x in outputs),
    )
    graph = LayerGraph(
        [layer],
        [Port(0, n) for n in range(len(outputs))],
        input_bytes=[tensor_bytes(x) for x in example],
        name=name,
    )
    known = {Port(REQUEST, n): spec for n, spec in enumerate(input_specs)}
    known |= {Port(0, n): _spec(x) for n, x in enumerate(outputs)}
    return SplitModel(model, graph, input_specs, lambda *_: segment, known.__getitem__)


def _packed(model: Any, flat: Sequence[Any]) -> Any:
    structure = getattr(model, "_inputs_struct", None)
    if structure is not None:
        return keras.tree.pack_sequence_as(structure, list(flat))
    return flat[0] if len(flat) == 1 else list(flat)


def _spec(tensor: Any) -> tf.TensorSpec:
    return tf.TensorSpec((None, *tensor.shape[1:]), tensor.dtype)
