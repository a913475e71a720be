"""Any Keras model as a `LayerGraph` of its layers.

Functional and Sequential models are split at every layer, as far as a call of the model does no more than its
graph says. All others stay whole (`whole_model.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import keras
import tensorflow as tf

from overlap_train._keras import models
from overlap_train.scheduling.graph.calls import Call, calls_of, tensor_bytes
from overlap_train.scheduling.graph.cutting import cut_call
from overlap_train.scheduling.graph.layers import REQUEST, Layer, LayerGraph, Port
from overlap_train.scheduling.graph.model_inputs import ModelInputs, inputs_of
from overlap_train.scheduling.graph.split import SplitModel, spec_of
from overlap_train.scheduling.graph.whole_model import WholeModel

__all__ = ["SplitModel", "split_model"]


def split_model(
    model: Any,
    *,
    name: str | None = None,
    input_specs: Sequence[tf.TensorSpec] = (),
    cut: int = 1,
    only: Container[str] | None = None,
) -> SplitModel:
    """Split a model into layers, and its large ones into at most `cut` pieces.

    `only` names the layers that may be cut, as they are in the graph; a subclassed model needs `input_specs`.
    """
    if cut < 1:
        raise ValueError(f"cut must be at least 1, got {cut}")
    name = name or model.name
    functional = models.stock_graph(model)
    inputs = inputs_of(model, () if functional is not None else input_specs, name)
    if functional is None or _stays_whole(model, functional, inputs):
        return WholeModel(model, name, inputs)
    calls: list[Call] = []
    for call in _named_apart(calls_of(functional)):
        calls += cut_call(call, cut) if only is None or f"{name}/{call.name}" in only else [call]
    return _FunctionalSplit(functional, name, calls, inputs) if calls else WholeModel(model, name, inputs)


def _stays_whole(model: Any, functional: Any, inputs: ModelInputs) -> bool:
    """Whether something passes between the layers that does not pass between segments.

    That is a mask, a tensor that is no array, an input that may be left out, or the training phase: a layer
    that is called with `training=True` sets it for all layers behind it too.
    """
    return (
        any(inputs.optional)
        or _has_masks(model)
        or models.carries_more_than_arrays(functional)
        or models.trains_by_itself(model)
    )


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
    """A functional model, layer by layer."""

    def __init__(self, functional: Any, name: str, calls: Sequence[Call], inputs: ModelInputs) -> None:
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
        super().__init__(graph, inputs, models.output_structure(functional))

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
        return spec_of(self._tensors[port])


def _layer(name: str, call: Call, ports: Mapping[int, Port]) -> Layer:
    return Layer(
        f"{name}/{call.name}",
        call.work,
        tuple(ports[id(tensor)] for tensor in call.inputs),
        tuple(tensor_bytes(tensor) for tensor in call.outputs),
        alone=call.alone,
    )
