"""What a model is: something that Keras can train, compiled, built, and made of which layers and variables.

Leans on `KerasTrainer`, `_compile_loss`, `_compile_metrics`, `_flatten_layers` and `state_mapping`. On
the training thread.
"""

from __future__ import annotations

import os
from typing import Any

import keras
import tensorflow as tf

from overlap_train._keras import methods

__all__ = [
    "compiled_parts",
    "flat_layers",
    "is_trainer",
    "require_compiled",
    "require_model",
    "runs_eagerly",
    "scope_variable_ids",
    "variable_handles",
]


def variable_handles(variable: keras.Variable) -> list[Any]:
    """Return the resource handles of a variable's copies on all replicas, or its own (`value`)."""
    value = variable.value
    copies = value.values if isinstance(value, tf.distribute.DistributedValues) else (value,)
    return [copy.handle for copy in copies]


def is_trainer(model: object) -> bool:
    """Whether an object can be trained as a Keras model: a layer that is a Keras `Trainer` too."""
    return isinstance(model, methods.KerasTrainer) and isinstance(model, keras.Layer)


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
