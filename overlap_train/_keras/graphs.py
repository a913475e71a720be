"""The graph of a functional model: its nodes, inputs and outputs, and whether it is all that a call runs.

Leans on `_functional`, `_nodes_by_depth`, `_inputs_struct`, `_outputs_struct`, `_keras_mask` and the methods
through which `Functional` runs its graph. Any thread.
"""

from __future__ import annotations

import inspect
from typing import Any

import keras

from overlap_train._keras.models import flat_layers, overriding_class

_METHODS_OF_A_CALL = (
    *("__call__", "call", "_run_through_graph"),
    *("_standardize_inputs", "_convert_inputs_to_tensors", "_adjust_input_rank"),
)


def own_code_of(model: keras.Model) -> str | None:
    """Return the name of a custom method that a call of the model runs, or None."""
    return next((name for name in _METHODS_OF_A_CALL if overriding_class(model, name) is not None), None)


def stock_graph(model: keras.Model) -> Any:
    """Return the functional model whose graph is all that a call of `model` runs, or None."""
    if own_code_of(model) is not None:
        return None
    functional = _functional(model)
    return functional if hasattr(functional, "_nodes_by_depth") else None


def _functional(model: keras.Model) -> Any:
    return model._functional if isinstance(model, keras.Sequential) else model


def graph_nodes(functional: Any) -> list[Any]:
    """Return the nodes of a functional model's graph, calls of layers, in the order in which they are run."""
    depths = sorted(functional._nodes_by_depth, reverse=True)
    return [
        node
        for depth in depths
        for node in functional._nodes_by_depth[depth]
        if node.operation is not None and not node.is_input
    ]


def trains_by_itself(model: keras.Model) -> bool:
    """Whether a graph within a model calls a layer with `training=True` that is not its own default."""
    graphs = [layer for layer in flat_layers(model) if hasattr(layer, "_nodes_by_depth")]
    return any(_is_for_training(node) for graph in graphs for node in graph_nodes(graph))


def _is_for_training(node: Any) -> bool:
    value = node.arguments.kwargs.get("training")
    if not isinstance(value, keras.KerasTensor) and not value:
        return False
    # Keras records the default of a layer as if it had been passed.
    default = inspect.signature(node.operation.call).parameters.get("training")
    return default is None or default.default is not True


def carries_more_than_arrays(functional: Any) -> bool:
    """Whether a tensor between two layers carries a mask, or is sparse or ragged."""
    outputs = (tensor for node in graph_nodes(functional) for tensor in node.outputs)
    return any(
        getattr(tensor, "_keras_mask", None) is not None
        or getattr(tensor, "sparse", False)
        or getattr(tensor, "ragged", False)
        for tensor in (*functional.inputs, *outputs)
    )


def input_structure(model: keras.Model) -> Any:
    """Return the symbolic inputs of a model, nested as in a call, or None if it has none."""
    return getattr(_functional(model), "_inputs_struct", None)


def output_structure(functional: Any) -> Any:
    """Return the symbolic outputs of a functional model, nested as a call returns them."""
    outputs = functional._outputs_struct
    # `Functional.call` takes a single output out of its list.
    return outputs[0] if isinstance(outputs, (list, tuple)) and len(outputs) == 1 else outputs


def is_optional(tensor: Any) -> bool:
    """Whether a symbolic input may be None."""
    history = getattr(tensor, "_keras_history", None)
    return bool(history is not None and getattr(history.operation, "optional", False))
