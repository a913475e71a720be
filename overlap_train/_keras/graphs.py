"""The graph of a functional model, and whether a call of the model does what the graph says.

Leans on `_functional`, `_nodes_by_depth`, `_inputs_struct`, `_outputs_struct`, `_keras_mask` and the methods
through which `Functional` runs its graph. Any thread.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import keras

from overlap_train._keras import methods, models

__all__ = [
    "carries_more_than_arrays",
    "graph_nodes",
    "input_structure",
    "is_optional",
    "output_structure",
    "own_code_of",
    "stock_graph",
    "trains_by_itself",
]

_CALLED = (
    "__call__",
    "call",
    "_run_through_graph",
    "_standardize_inputs",
    "_convert_inputs_to_tensors",
    "_adjust_input_rank",
)


def own_code_of(model: keras.Model) -> str | None:
    """Return the name of a custom method that a call of the model runs, or None."""
    return next((name for name in _CALLED if methods.overriding_class(model, name) is not None), None)


def stock_graph(model: keras.Model) -> Any:
    """Return the functional model whose graph is all that a call of `model` runs, or None."""
    if own_code_of(model) is not None:
        return None
    functional = model._functional if isinstance(model, keras.Sequential) else model
    return functional if hasattr(functional, "_nodes_by_depth") else None


def graph_nodes(functional: Any) -> list[Any]:
    """Return what Keras keeps of each call of a layer, in the order in which it makes them."""
    depths = sorted(functional._nodes_by_depth, reverse=True)
    return [
        node
        for depth in depths
        for node in functional._nodes_by_depth[depth]
        if node.operation is not None and not node.is_input
    ]


def trains_by_itself(model: keras.Model) -> bool:
    """Whether the graph of a model, or of one inside it, calls a layer with `training=True`.

    Unless that is the layer's own default, as of one that augments images.
    """
    graphs = [layer for layer in models.flat_layers(model) if hasattr(layer, "_nodes_by_depth")]
    return any(map(_asks_for_training, (node for graph in graphs for node in graph_nodes(graph))))


def carries_more_than_arrays(functional: Any) -> bool:
    """Whether a tensor between two layers carries a mask, or is sparse or ragged."""
    return any(
        getattr(tensor, "_keras_mask", None) is not None
        or getattr(tensor, "sparse", False)
        or getattr(tensor, "ragged", False)
        for tensor in _tensors(functional)
    )


def input_structure(model: keras.Model) -> Any:
    """Return the symbolic inputs of a model as they are nested, or None if it does not say."""
    functional = model._functional if isinstance(model, keras.Sequential) else model
    return getattr(functional, "_inputs_struct", None)


def output_structure(functional: Any) -> Any:
    """Return the symbolic outputs of a functional model as they are nested in what a call returns."""
    outputs = functional._outputs_struct
    # `Functional.call` takes a single output out of its list.
    return outputs[0] if isinstance(outputs, (list, tuple)) and len(outputs) == 1 else outputs


def is_optional(tensor: Any) -> bool:
    """Whether None may be given for a symbolic input."""
    history = getattr(tensor, "_keras_history", None)
    return bool(history is not None and getattr(history.operation, "optional", False))


def _tensors(functional: Any) -> Iterator[Any]:
    yield from functional.inputs
    for node in graph_nodes(functional):
        yield from node.outputs


def _asks_for_training(node: Any) -> bool:
    value = node.arguments.kwargs.get("training")
    if not isinstance(value, keras.KerasTensor) and not value:
        return False
    # Keras keeps the default of a layer as if it had been given: it is none of the graph's.
    default = inspect.signature(node.operation.call).parameters.get("training")
    return default is None or default.default is not True
