"""What a model is: whose code its methods are, its layers and variables.

A method is Keras's own, the user's, or one by which a library has replaced Keras's. Leans on `KerasTrainer`,
on the closure of `filter_traceback` around Keras's methods, on `_compile_loss`, `_compile_metrics`,
`_flatten_layers` and `_distribute_strategy`. Any thread.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import tensorflow as tf

from overlap_train._keras.names import KerasTrainer

# Keras's own methods, even if a library replaces them later.
_STOCK: dict[str, Any] = {"fit": KerasTrainer.fit, "evaluate": KerasTrainer.evaluate}


def overriding_class(model: keras.Model, name: str) -> type | None:
    """Return the user's class that overrides a method of Keras's, or None; a patch is no override."""
    if name in vars(model):
        return type(model)  # set on the model itself
    owner = next((kind for kind in type(model).__mro__ if name in vars(kind)), object)
    return None if owner is object or _is_keras_module(owner.__module__) else owner


def is_replaced(model: keras.Model, name: str) -> bool:
    """Whether a method is not Keras's, but the model's, its class's, or one put into Keras's own class."""
    return overriding_class(model, name) is not None or patched_by(model, name) is not None


def patched_by(model: keras.Model, name: str) -> str | None:
    """Return the module of the function that a library has put in place of Keras's own method, or None."""
    method = getattr(type(model), name)
    if method is _STOCK.get(name, method) and is_stock_method(method):
        return None
    variables = getattr(method, "__globals__", {})
    return str(variables.get("__name__") or getattr(type(method), "__module__", "another module"))


def codes_of(model: keras.Model, name: str) -> set[types.CodeType]:
    """Return the code of a method of a model, of those that it overrides, and of what these decorate."""
    owners = (vars(model), *map(vars, type(model).__mro__))
    methods = _functions(owner.get(name) for owner in owners)
    decorated, pending = set[types.FunctionType](), list(methods)
    while pending:
        inner = set(_functions(_references(pending.pop()))) - decorated
        decorated |= inner
        pending += inner
    codes = (function.__code__ for function in decorated)
    return {function.__code__ for function in methods} | {code for code in codes if code.co_name == name}


def _references(function: types.FunctionType) -> Iterator[Any]:
    """Yield what a decorator or a library may have wrapped in a function."""
    yield getattr(function, "__wrapped__", None)
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # it is empty
            yield cell.cell_contents


def _functions(values: Iterable[Any]) -> list[types.FunctionType]:
    functions = [getattr(value, "__func__", value) for value in values]
    return [function for function in functions if isinstance(function, types.FunctionType)]


def method_cell(name: str) -> Any:
    """Return the cell of the function that Keras's method runs (the variable `fn` of `filter_traceback`)."""
    method = _STOCK[name]
    while method is not None:
        names = method.__code__.co_freevars
        if is_stock_method(method) and "fn" in names:
            return method.__closure__[names.index("fn")]
        method = getattr(method, "__wrapped__", None)  # another library may have wrapped it
    raise RuntimeError(f"keras.Model.{name} of Keras {keras.__version__} cannot be routed")


def is_stock_method(method: Any) -> bool:
    """Whether a bound method, function or class is Keras's own and not a user's override."""
    function = getattr(method, "__func__", method)
    # Not a function's `__module__`: `functools.wraps` copies it to a user's wrapper of a function of Keras's,
    # and a mock to a function whose globals have no name.
    variables = getattr(function, "__globals__", None)
    module = getattr(function, "__module__", "") if variables is None else variables.get("__name__", "")
    return _is_keras_module(str(module))


def _is_keras_module(name: str) -> bool:
    """Whether a module is Keras's own, and not one of its tests, which are written as users write."""
    return name.split(".")[0] == "keras" and not name.endswith("_test")


def set_until(undo: contextlib.ExitStack, owner: Any, name: str, value: Any) -> None:
    """Set an attribute of an object past Keras's tracking, until `undo` is closed."""
    attributes = vars(owner)
    if name in attributes:
        undo.callback(attributes.__setitem__, name, attributes[name])
    else:
        undo.callback(attributes.pop, name, None)
    attributes[name] = value


def variable_handles(variable: keras.Variable) -> list[Any]:
    """Return the resource handle of a variable, or of each of its copies on replicas (`value`)."""
    value = variable.value
    copies = value.values if isinstance(value, tf.distribute.DistributedValues) else (value,)
    return [copy.handle for copy in copies]


def is_trainer(model: object) -> bool:
    """Whether an object can be trained as a Keras model: a layer that is also a Keras `Trainer`."""
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
    raise TypeError(f"{name} must be a keras.Model; got {type(model).__name__}")


def runs_eagerly(model: keras.Model) -> bool:
    """Whether Keras runs a model's steps eagerly, for the model or by `tf.config.run_functions_eagerly`."""
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


def compiled_parts(model: keras.Model) -> tuple[Any, Any]:
    """Return the loss and the metrics that `compile` has made (`_compile_loss`, `_compile_metrics`)."""
    return model._compile_loss, model._compile_metrics


def strategy_of(model: keras.Model) -> tf.distribute.Strategy | None:
    """Return the strategy whose scope made a model (`_distribute_strategy`), or None."""
    return getattr(model, "_distribute_strategy", None)


def looks_beforehand(model: keras.Model) -> bool:
    """Whether Keras draws a batch before each training and validation of a model (`_maybe_symbolic_build`).

    It does so under any strategy. But several replicas give the numbers, and so the orders, of one device
    without.
    """
    strategy = strategy_of(model)
    return strategy is not None and strategy.num_replicas_in_sync == 1
