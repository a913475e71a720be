"""What a model is: whose code its methods are, its layers and variables, and the graph of a functional one.

A method is Keras's own, a library's that has put itself in its place, or the user's. Leans on `KerasTrainer`,
on the closure of `filter_traceback` in which Keras's methods lie, on `_compile_loss`, `_compile_metrics`,
`_flatten_layers`, `state_mapping`, `_functional`, `_nodes_by_depth`, `_inputs_struct`, `_outputs_struct`,
`_keras_mask` and the methods through which `Functional` runs its graph. Any thread.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import types
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from overlap_train._keras.names import KerasTrainer

__all__ = [
    "KerasTrainer",
    "carries_more_than_arrays",
    "codes_of",
    "compiled_parts",
    "flat_layers",
    "graph_nodes",
    "input_structure",
    "is_optional",
    "is_replaced",
    "is_stock_method",
    "is_trainer",
    "method_cell",
    "output_structure",
    "overriding_class",
    "own_code_of",
    "patched_by",
    "require_compiled",
    "require_model",
    "runs_eagerly",
    "scope_variable_ids",
    "stock_graph",
    "trains_by_itself",
    "variable_handles",
]


# As Keras made them, whatever a library puts in their place later.
_STOCK: dict[str, Any] = {"fit": KerasTrainer.fit, "evaluate": KerasTrainer.evaluate}


def overriding_class(model: keras.Model, name: str) -> type | None:
    """Return the class of a user's that has a method of its own in place of Keras's; None for Keras's.

    A function that a library puts into Keras's own class, as loggers do, is no override.
    """
    if name in vars(model):
        return type(model)  # set on the model itself
    owner = next((kind for kind in type(model).__mro__ if name in vars(kind)), object)
    return None if owner is object or _is_keras_module(owner.__module__) else owner


def is_replaced(model: keras.Model, name: str) -> bool:
    """Whether what Keras calls by a method's name is not what Keras made.

    Replaced it may be on the model, in its class, or in Keras's own class, by a library or a mock.
    """
    return overriding_class(model, name) is not None or patched_by(model, name) is not None


def patched_by(model: keras.Model, name: str) -> str | None:
    """Return the module of what a library has put in place of Keras's own method of all models, or None."""
    found = getattr(type(model), name)
    if found is _STOCK.get(name, found) and is_stock_method(found):
        return None
    variables = getattr(found, "__globals__", {})
    return str(variables.get("__name__") or getattr(type(found), "__module__", "another module"))


def codes_of(model: keras.Model, name: str) -> set[types.CodeType]:
    """Return the code of a method of a model, of those that it overrides, and of what they go around."""
    owners = (vars(model), *map(vars, type(model).__mro__))
    own = [function for owner in owners if (function := _function(owner.get(name))) is not None]
    inner: dict[int, types.FunctionType] = {}
    for function in own:
        _add_inner(function, inner)
    codes = (function.__code__ for function in inner.values())
    return {function.__code__ for function in own} | {code for code in codes if code.co_name == name}


def _add_inner(function: types.FunctionType, found: dict[int, types.FunctionType]) -> None:
    """Add the functions that a decorator or a library has put one around."""
    held = [getattr(function, "__wrapped__", None)]
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # it is empty
            held.append(cell.cell_contents)
    for each in map(_function, held):
        if each is not None and id(each) not in found:
            found[id(each)] = each
            _add_inner(each, found)


def _function(method: Any) -> types.FunctionType | None:
    function = getattr(method, "__func__", method)
    return function if isinstance(function, types.FunctionType) else None


def method_cell(name: str) -> Any:
    """Return the cell in which Keras's method holds what it runs (`filter_traceback`, its variable `fn`)."""
    method = _STOCK[name]
    while method is not None:
        names = method.__code__.co_freevars
        if is_stock_method(method) and "fn" in names:
            return method.__closure__[names.index("fn")]
        method = getattr(method, "__wrapped__", None)  # as another library has wrapped it
    raise RuntimeError(f"keras.Model.{name} of Keras {keras.__version__} cannot be routed")


def is_stock_method(method: Any) -> bool:
    """Whether a bound method, function or class is Keras's own and not a user's override."""
    function = getattr(method, "__func__", method)
    # Not a function's `__module__`: `functools.wraps` copies it to what a user puts around one of Keras's,
    # and a mock to one whose globals have no name.
    spaces = getattr(function, "__globals__", None)
    module = getattr(function, "__module__", "") if spaces is None else spaces.get("__name__", "")
    return _is_keras_module(str(module))


def _is_keras_module(name: str) -> bool:
    """Whether a module is Keras's own, and not one of its tests, which are written as users write."""
    return name.split(".")[0] == "keras" and not name.endswith("_test")


def variable_handles(variable: keras.Variable) -> list[Any]:
    """Return the resource handles of a variable's copies on all replicas, or its own (`value`)."""
    value = variable.value
    copies = value.values if isinstance(value, tf.distribute.DistributedValues) else (value,)
    return [copy.handle for copy in copies]


def is_trainer(model: object) -> bool:
    """Whether an object can be trained as a Keras model: a layer that is a Keras `Trainer` too."""
    return isinstance(model, KerasTrainer) and isinstance(model, keras.Layer)


def require_model(model: object, name: str = "model") -> None:
    """Raise TypeError unless `model` is a Keras model, or a layer that Keras can train."""
    if isinstance(model, keras.Model) or is_trainer(model):
        return
    if any(kind.__module__.split(".")[0] == "tf_keras" for kind in type(model).__mro__):
        raise TypeError(
            f"{name} must be a keras.Model; {type(model).__name__} is one of tf_keras, that is Keras 2: "
            "build it with Keras 3 (import keras), and do not set TF_USE_LEGACY_KERAS"
        )
    remedy = ""
    if isinstance(model, (str, os.PathLike)):
        file = str.__str__(os.fspath(model))  # not as a class of the user's writes it
        remedy = f"; if that is a file, pass keras.saving.load_model({file!r})"
    elif isinstance(model, type) or callable(model):
        remedy = "; call it, and pass the model that it makes"
    raise TypeError(f"{name} must be a keras.Model; got {type(model).__name__}{remedy}")


def runs_eagerly(model: keras.Model) -> bool:
    """Whether Keras runs a model's steps operation by operation; `tf.config.run_functions_eagerly` counts."""
    return bool(model.run_eagerly or tf.config.functions_run_eagerly())


def require_compiled(model: keras.Model) -> None:
    """Raise Keras's own ValueError unless `model.compile` has been called."""
    if not getattr(model, "compiled", False):
        raise ValueError(
            f"the model {model.name!r} is not compiled; call "
            "model.compile(optimizer=..., loss=..., metrics=[...]) before Trainer.fit or Trainer.evaluate"
        )


def flat_layers(model: keras.Model) -> list[keras.Layer]:
    """Return a model and all layers in it (`_flatten_layers`)."""
    return list(model._flatten_layers())


def scope_variable_ids(scope: keras.StatelessScope) -> set[int]:
    """Return the `id` of every variable that has a value in a scope (`state_mapping`)."""
    return set(scope.state_mapping)


def compiled_parts(model: keras.Model) -> tuple[Any, Any]:
    """Return the loss and the metrics that `compile` has made (`_compile_loss`, `_compile_metrics`)."""
    return model._compile_loss, model._compile_metrics


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
    return next((name for name in _CALLED if overriding_class(model, name) is not None), None)


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
    graphs = [layer for layer in flat_layers(model) if hasattr(layer, "_nodes_by_depth")]
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
