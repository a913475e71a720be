"""Any Keras model as a `LayerGraph` of its layers.

Functional and Sequential models are split at every layer; what cannot be split (a subclassed model, or
a network whose layers pass masks with their tensors) becomes a graph of one layer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import keras
import tensorflow as tf

from overlap_train.scheduling.graph.calls import Call, calls_of, tensor_bytes, work_of
from overlap_train.scheduling.graph.cutting import cut_call
from overlap_train.scheduling.graph.layers import REQUEST, Layer, LayerGraph, Port

__all__ = ["SplitModel", "split_model"]


class SplitModel(ABC):
    """A Keras model and its graph.

    Attributes:
        graph: single layers; `runs` is empty, `function` makes them.
        input_specs: of each tensor of a request, with None for the batch.
    """

    def __init__(self, graph: LayerGraph, input_specs: tuple[tf.TensorSpec, ...]) -> None:
        self.graph = graph
        self.input_specs = input_specs

    @abstractmethod
    def function(
        self, reads: Sequence[Port], members: range, returns: Sequence[Port], whole: bool
    ) -> Callable[..., list[Any]]:
        """Return the Python function of a segment, to be traced.

        Args:
            reads: the tensors that it is given.
            members: the layers of the segment.
            returns: the tensors that it returns.
            whole: whether its first layer runs in one piece.
        """

    @abstractmethod
    def spec(self, port: Port) -> tf.TensorSpec:
        """Return the shape, with None for the batch, and the dtype of a tensor of the graph."""


def split_model(
    model: Any,
    *,
    name: str | None = None,
    input_specs: Sequence[tf.TensorSpec] = (),
    cut: int = 1,
    only: Container[str] | None = None,
) -> SplitModel:
    """Split a model into layers.

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
        calls: list[Call] = []
        for call in _named_apart(calls_of(functional)):
            calls += cut_call(call, cut) if only is None or f"{name}/{call.name}" in only else [call]
        if calls:
            return _FunctionalSplit(functional, name, calls)
        input_specs = [_spec(x) for x in functional.inputs]
    return _OneLayer(model, name, tuple(input_specs))


def _has_masks(model: Any) -> bool:
    return any(
        isinstance(layer, keras.layers.Masking) or getattr(layer, "mask_zero", False)
        for layer in model._flatten_layers()
    )


def _named_apart(calls: Sequence[Call]) -> Iterator[Call]:
    """Number the calls of a layer that is called more than once."""
    counts: Counter[str] = Counter()
    for call in calls:
        counts[call.name] += 1
        again = counts[call.name] > 1
        yield replace(call, name=f"{call.name}#{counts[call.name]}") if again else call


class _FunctionalSplit(SplitModel):
    """A functional model, layer by layer.

    Args:
        functional: the model.
        name: of the network.
        calls: of its layers, some of them in pieces; at least one.
    """

    def __init__(self, functional: Any, name: str, calls: Sequence[Call]) -> None:
        self._calls = calls
        self._tensors: dict[Port, Any] = {Port(REQUEST, n): x for n, x in enumerate(functional.inputs)}
        for index, call in enumerate(calls):
            self._tensors |= {Port(index, number): tensor for number, tensor in enumerate(call.outputs)}
        ports = {id(tensor): port for port, tensor in self._tensors.items()}
        layers = []
        for call in calls:
            layer = _layer(name, call, ports)
            if call.whole is not None:
                layer = replace(layer, whole=_layer(name, call.whole, ports))
            layers.append(layer)
        graph = LayerGraph(
            layers,
            [ports[id(tensor)] for tensor in functional.outputs],
            input_bytes=[tensor_bytes(x) for x in functional.inputs],
            name=name,
        )
        super().__init__(graph, tuple(_spec(x) for x in functional.inputs))

    def function(
        self, reads: Sequence[Port], members: range, returns: Sequence[Port], whole: bool
    ) -> Callable[..., list[Any]]:
        def segment(*args: Any) -> list[Any]:
            values = {id(self._tensors[port]): value for port, value in zip(reads, args, strict=True)}
            for index in members:
                call = self._calls[index]
                if whole and index == members[0]:
                    call = call.whole or call
                made = call.run([values[id(tensor)] for tensor in call.inputs])
                values.update(zip(map(id, call.outputs), made, strict=True))
            return [values[id(self._tensors[port])] for port in returns]

        return segment

    def spec(self, port: Port) -> tf.TensorSpec:
        return _spec(self._tensors[port])


def _layer(name: str, call: Call, ports: Mapping[int, Port]) -> Layer:
    return Layer(
        f"{name}/{call.name}",
        call.work,
        tuple(ports[id(tensor)] for tensor in call.inputs),
        tuple(tensor_bytes(tensor) for tensor in call.outputs),
        alone=call.alone,
    )


class _OneLayer(SplitModel):
    """A model that stays whole.

    Args:
        model: any.
        name: of the network.
        input_specs: of its inputs, with None for the batch; may be empty where the model knows them.

    Raises:
        ValueError: nobody knows its inputs.
    """

    def __init__(self, model: Any, name: str, input_specs: tuple[tf.TensorSpec, ...]) -> None:
        if not input_specs and getattr(model, "inputs", None):
            input_specs = tuple(_spec(x) for x in model.inputs)
        if not input_specs:
            raise ValueError(
                f"{name}: a subclassed model does not say what it reads; "
                "pass input_specs=(tf.TensorSpec(...),)"
            )
        self._model = model
        example = [keras.KerasTensor(spec.shape, spec.dtype.name) for spec in input_specs]
        outputs = keras.tree.flatten(model.compute_output_spec(_packed(model, example)))
        self._specs = {Port(REQUEST, n): spec for n, spec in enumerate(input_specs)}
        self._specs |= {Port(0, n): _spec(x) for n, x in enumerate(outputs)}
        layer = Layer(
            f"{name}/all",
            work_of(model, example, outputs),
            tuple(Port(REQUEST, n) for n in range(len(input_specs))),
            tuple(tensor_bytes(x) for x in outputs),
        )
        graph = LayerGraph(
            [layer],
            [Port(0, n) for n in range(len(outputs))],
            input_bytes=[tensor_bytes(x) for x in example],
            name=name,
        )
        super().__init__(graph, input_specs)

    def function(
        self, reads: Sequence[Port], members: range, returns: Sequence[Port], whole: bool
    ) -> Callable[..., list[Any]]:
        def segment(*args: Any) -> list[Any]:
            return list(keras.tree.flatten(self._model(_packed(self._model, args), training=False)))

        return segment

    def spec(self, port: Port) -> tf.TensorSpec:
        return self._specs[port]


def _packed(model: Any, flat: Sequence[Any]) -> Any:
    structure = getattr(model, "_inputs_struct", None)
    if structure is not None:
        return keras.tree.pack_sequence_as(structure, list(flat))
    return flat[0] if len(flat) == 1 else list(flat)


def _spec(tensor: Any) -> tf.TensorSpec:
    return tf.TensorSpec((None, *tensor.shape[1:]), tensor.dtype)
