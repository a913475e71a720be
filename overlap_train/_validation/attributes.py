"""The Python attributes of a model and its layers at one moment, given to a copy of it.

Weights are variables, and a snapshot has them. What else a function of a model may look at (a threshold, a
temperature, a list of classes, a tokenizer that was attached) is taken with the snapshot. Numbers, texts,
containers of these and arrays are copied. Other objects of the user's are the same ones. Taken on the
training thread.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from overlap_train._keras import copies as keras_copies
from overlap_train._keras import models as keras_models

__all__ = ["Attributes", "is_stock", "watched"]

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_OWN_STATE = (
    *(keras.Layer, keras.Variable, keras.optimizers.Optimizer, keras.metrics.Metric, keras.losses.Loss),
    *(tf.Variable, tf.Module, keras.random.SeedGenerator),
)
# Attributes that belong to what has been trained and run, and not to what the model is.
_OF_A_RUN = frozenset(
    {"history", "optimizer", "train_function", "test_function", "predict_function", "stop_training"}
    | {"stop_evaluating", "built"}
)
_MISSING = object()


class _NotTaken(Exception):
    """A value holds a part of the model, which the copy has of its own."""


@dataclass(frozen=True)
class Attributes:
    """What the attributes of a model and its layers were.

    Attributes:
        kinds: the classes of the model and its layers, in their order.
        values: the attributes of each, by name.
        trainable: whether each of them, and each variable, is to be trained.
    """

    kinds: tuple[str, ...]
    values: tuple[Mapping[str, Any], ...]
    trainable: tuple[tuple[bool, ...], tuple[bool, ...]]

    @classmethod
    def of(cls, model: keras.Model) -> Attributes:
        """Takes them. On the training thread."""
        layers = keras_models.flat_layers(model)
        kinds = tuple(type(layer).__name__ for layer in layers)
        values = tuple(dict(_taken(layer, whole=layer is model)) for layer in layers)
        return cls(kinds, values, keras_copies.trainable(model))

    def give(self, copy: keras.Model, given: Attributes | None) -> None:
        """Sets them on a copy of the model; what has been deleted since is deleted.

        Args:
            copy: of layers of the same classes.
            given: those that it was given before, or None.
        """
        for number, layer in enumerate(keras_models.flat_layers(copy)):
            live, values = vars(layer), self.values[number]
            before = given.values[number] if given is not None else {}
            for name in before.keys() - values.keys():
                live.pop(name, None)
            for name, value in values.items():
                if isinstance(value, types.FunctionType) and before.get(name, value) is value:
                    continue  # as the copy was made, or is no copy
                # A layer's own private attribute may be one that this copy has no use for.
                if name in live or not name.startswith("_"):
                    live[name] = _copied(value)
        keras_copies.set_trainable(copy, self.trainable)

    def changed(self, since: Attributes) -> str | None:
        """Returns the first attribute that has become another since, such as "Scaled.scale", or None."""
        for kind, before, now in zip(self.kinds, since.values, self.values, strict=False):
            for name in {**before, **now}:
                if not _same(before.get(name, _MISSING), now.get(name, _MISSING)):
                    return f"{kind}.{name}"
        return None if self.trainable == since.trainable else f"{self.kinds[0]}.trainable"


def watched(model: keras.Model, *, looked_at: bool) -> Callable[[], str | None]:
    """Returns what says which attribute of a model has been set since this call, or None.

    Args:
        model: that callbacks are about to get.
        looked_at: whether there are evaluation functions.
    """
    if not looked_at:
        return lambda: None
    before = Attributes.of(model)

    def changed() -> str | None:
        name = Attributes.of(model).changed(before)
        return None if name is None else f"a callback set {name}, at which evaluation functions may look"

    return changed


def is_stock(layer: keras.Layer) -> bool:
    """Whether a layer is one of Keras's, which its configuration describes completely."""
    if type(layer) is keras.layers.Lambda or not keras_models.is_stock_method(type(layer)):
        return False
    return all(
        keras_models.is_stock_method(v) for v in vars(layer).values() if isinstance(v, types.FunctionType)
    )


def _taken(layer: keras.Layer, *, whole: bool) -> Iterator[tuple[str, Any]]:
    """Yields the attributes that may have been set since a layer was made.

    Args:
        layer: the model, or a layer in it.
        whole: whether objects of the user's are among them, as they are of the model itself.
    """
    stock, known = is_stock(layer), keras_copies.base_attributes() | _OF_A_RUN
    for name, value in list(vars(layer).items()):
        inner = name.startswith("_") and (stock or type(value) not in _PLAIN)
        if inner or name in known or name.startswith("_self_"):  # TensorFlow's
            continue
        try:
            copied = _copied(value)
        except _NotTaken:
            continue
        # Keras's own functions, such as activations; another one may hold layers of this model.
        own = isinstance(value, types.FunctionType) and keras_models.is_stock_method(value)
        if whole or copied is not value or type(value) in _PLAIN or own:
            yield name, copied


def _copied(value: Any) -> Any:
    """Returns a copy of what can change, and other objects themselves.

    Raises:
        _NotTaken: a part of the model is in it.
    """
    if isinstance(value, _OWN_STATE):
        raise _NotTaken
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, list):  # of Keras's own class, too
        return [_copied(item) for item in value] if _is_python(value, list) else value
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()} if _is_python(value, dict) else value
    if isinstance(value, set):
        return set(value) if _is_python(value, set) else value
    if type(value) is tuple:
        return tuple(map(_copied, value))
    return value


def _is_python(value: Any, kind: type) -> bool:
    """Whether a container is of Python's class, or of Keras's that stands for it in a layer."""
    return type(value) is kind or type(value).__module__.startswith("keras.")


def _same(first: Any, second: Any) -> bool:
    if first is second:
        return True
    if isinstance(first, np.ndarray) and isinstance(second, np.ndarray):
        return first.dtype == second.dtype and first.tobytes() == second.tobytes()
    if type(first) is not type(second):
        return False
    if isinstance(first, (list, tuple)):
        return len(first) == len(second) and all(map(_same, first, second))
    if isinstance(first, dict):
        return list(first) == list(second) and all(map(_same, first.values(), second.values()))
    return isinstance(first, (*_PLAIN, set)) and repr(first) == repr(second)
