"""A model of a snapshot's weights and attributes, private to an evaluation function.

It is made on the training thread before the training begins, on the snapshot's memory, and belongs to the
function's thread after that. A copy that might answer otherwise than the model itself is refused: what
differs from Keras must not be silent. Weights are variables, and a snapshot has them. What else a function
may look at (a threshold, a list of classes, a tokenizer that was attached) is taken as its evaluation begins,
on the training thread. Numbers, texts, containers of these and arrays are copied; other objects of the user's
are the same ones, and so are functions, except such as use the model itself.
"""

from __future__ import annotations

import itertools
import tempfile
import textwrap
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from overlap_train._inspection.code import Unclear
from overlap_train._inspection.computation import computation
from overlap_train._inspection.reach import reaches
from overlap_train._inspection.traced import TracedFunction
from overlap_train._keras import copies as keras_copies
from overlap_train._keras import models as keras_models
from overlap_train._keras import optimizers as keras_optimizers
from overlap_train._snapshot import ModelState, StateVariable, Values

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_FUNCTIONS = (types.FunctionType, types.MethodType)
_OWN_STATE = (
    *(keras.Layer, keras.Variable, keras.optimizers.Optimizer, keras.metrics.Metric, keras.losses.Loss),
    *(tf.Variable, tf.Module, keras.random.SeedGenerator),
)
# Attributes that belong to what has been trained and run, and not to what the model is.
_OF_A_RUN = frozenset(
    {"history", "optimizer", "train_function", "test_function", "predict_function", "stop_training"}
    | {"stop_evaluating", "built"}
)


class _NotTaken(Exception):
    """A value holds a part of the model, which the copy has of its own."""


@dataclass(frozen=True)
class Attributes:
    """What the attributes of a model and its layers were."""

    parts: tuple[Any, ...]
    values: tuple[Mapping[str, Any], ...]
    trainable: tuple[tuple[bool, ...], tuple[bool, ...]]

    @classmethod
    def of(cls, model: keras.Model) -> Attributes:
        """Takes them. On the training thread."""
        layers = keras_models.flat_layers(model)
        values = tuple(dict(_taken(layer, whole=layer is model)) for layer in layers)
        return cls((*layers, *model.variables), values, keras_copies.trainable(model))

    def give(self, copy: keras.Model, last: Attributes | None = None) -> None:
        """Sets them on a copy of the model; what has been deleted since `last` were set is deleted."""
        earlier = itertools.repeat({}) if last is None else last.values
        for layer, values, before in zip(keras_models.flat_layers(copy), self.values, earlier, strict=False):
            live = vars(layer)
            for name in before.keys() - values.keys():
                live.pop(name, None)
            for name, value in values.items():
                own = live.get(name) if last is None else before.get(name)
                if isinstance(value, _FUNCTIONS) and not self._has_use(name, value, own, last is None):
                    continue
                # A layer's own private attribute may be one that this copy has no use for.
                if name in live or not name.startswith("_"):
                    live[name] = _copied(value)
        keras_copies.set_trainable(copy, self.trainable)

    def _has_use(self, name: str, function: Any, own: Any, is_new: bool) -> bool:
        """Whether a copy takes a function in place of its own; raises CopyRefusedError if it has neither."""
        if function is own:
            return False
        has_own = is_new and isinstance(own, _FUNCTIONS)
        if has_own and getattr(own, "__code__", None) != getattr(function, "__code__", None):
            raise CopyRefusedError(f"its copy has something else as {name!r}")
        try:
            apart = reaches([function], self.parts) is None
        except Unclear:
            apart = False
        if not apart and not has_own:  # its own uses the copy
            raise CopyRefusedError(f"the function {name!r} that was set on it uses the model itself")
        return apart


def is_stock(layer: keras.Layer) -> bool:
    """Whether a layer is one of Keras's, which its configuration describes completely."""
    if type(layer) is keras.layers.Lambda or not keras_models.is_stock_method(type(layer)):
        return False
    return all(
        keras_models.is_stock_method(v) for v in vars(layer).values() if isinstance(v, types.FunctionType)
    )


def _taken(layer: keras.Layer, *, whole: bool) -> Iterator[tuple[str, Any]]:
    """Yields the attributes that may have been set since a layer was made."""
    stock, ignored = is_stock(layer), keras_copies.base_attributes() | _OF_A_RUN
    for name, value in list(vars(layer).items()):
        inner = name.startswith("_") and (stock or type(value) not in _PLAIN)
        if inner or name in ignored or name.startswith("_self_"):  # TensorFlow's
            continue
        try:
            copy = _copied(value)
        except _NotTaken:
            continue
        if whole or copy is not value or type(value) in (*_PLAIN, *_FUNCTIONS):
            yield name, copy


def _copied(value: Any) -> Any:
    """Returns a copy of what can change, and other objects themselves."""
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


class CopyRefusedError(Exception):
    """Says why a model has no private copy; not for users."""


class PrivateModel:
    """A copy of a model whose variables take over a snapshot's values. One thread at a time."""

    def __init__(
        self, model: keras.Model, variables: list[tuple[keras.Variable, int]], attributes: Attributes
    ) -> None:
        self.model = model
        self._attributes = attributes  # those that the copy has now
        self._variables = [(StateVariable.of_keras(variable), place) for variable, place in variables]

    def adopt(self, values: Values, attributes: Attributes) -> None:
        """Gives the copy a snapshot's values, on the snapshot's memory, and its attributes."""
        flat = values.flat()
        attributes.give(self.model, self._attributes)
        self._attributes = attributes
        for variable, place in self._variables:
            variable.assign(flat[place])
        self.model.stop_training = False


def make_private_model(
    model: keras.Model, state: ModelState, x_spec: Any, clone: Callable[[], keras.Model] | None = None
) -> PrivateModel:
    """Copies a model. On the training thread; leaves random states and running names as they were."""
    with keras_copies.preserved_state(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        copy = _from_configuration(model) if clone is None else _cloned(clone, model)
        _build(copy, x_spec)
        variables = list(zip(copy.variables, _places_of(model, state, model.variables), strict=False))
        _require_same_variables(copy.variables, model.variables)
        keras_copies.name_alike(copy.variables, model.variables)
        _require_same_layers(model, copy)
        if clone is None:
            _transfer(model, copy)
        attributes = Attributes.of(model)
        attributes.give(copy)
        if not copy.compiled:
            _compile(model, copy)
        keras_optimizers.build_optimizer(copy)
        if clone is not None or not all(map(is_stock, keras_models.flat_layers(model))):
            _require_same_computation(model, copy, x_spec)
    return PrivateModel(copy, variables + _optimizer_variables(model, copy, state), attributes)


def _places_of(model: keras.Model, state: ModelState, variables: list[keras.Variable]) -> list[int]:
    """Returns where the values of a model's variables are in `Values.flat`."""
    places = {id(handle): i for i, v in enumerate(state.variables) for handle in v.handles}
    try:
        return [places[id(keras_models.variable_handles(variable)[0])] for variable in variables]
    except KeyError:
        raise CopyRefusedError(f"{type(model).__name__} has variables that it does not list") from None


def require_no_outside(state: ModelState) -> None:
    """Raises CopyRefusedError if the training uses variables that no copy of the model has."""
    if state.outside:
        names = ", ".join(variable.name for variable in state.outside[:3])
        raise CopyRefusedError(f"the training uses variables outside the model ({names}), which no copy has")


def _from_configuration(model: keras.Model) -> keras.Model:
    """Returns the model made anew, as Keras makes it from its configuration."""
    try:
        with keras.saving.custom_object_scope(_custom_objects(model)), keras_copies.trusted():
            copy = type(model).from_config(model.get_config())
    except Exception as error:  # a custom configuration may raise anything
        text = textwrap.shorten(str(error), 160, placeholder=" ...")
        raise CopyRefusedError(
            f"{type(model).__name__} is not made anew by its configuration ({type(error).__name__}: {text})"
        ) from error
    if type(copy) is not type(model):
        raise CopyRefusedError(f"{type(model).__name__}.from_config makes a {type(copy).__name__}")
    return copy


def _cloned(clone: Callable[[], keras.Model], model: keras.Model) -> keras.Model:
    """Returns what the user's function makes, which is to be another model than the trained one."""
    copy = clone()
    if not keras_models.is_trainer(copy):
        raise TypeError(f"clone must return a Keras model; it returned a {type(copy).__name__}")
    if any(layer is model for layer in [copy, *keras_models.flat_layers(copy)]):
        raise ValueError("clone must make a new model; it returned the one that is trained")
    return copy


def _custom_objects(model: keras.Model) -> dict[str, Any]:
    """Returns the classes and functions of the user's that are found in a model, by name."""
    objects: dict[str, Any] = {}
    for layer in keras_models.flat_layers(model):
        functions = (v for v in vars(layer).values() if isinstance(v, types.FunctionType))
        for each in (type(layer), *functions):
            if keras_models.is_stock_method(each):
                continue
            name = keras.saving.get_registered_name(each)
            if objects.setdefault(name, each) is not each:
                raise CopyRefusedError(f"its layers use two functions or classes of the name {name!r}")
    return objects


def _build(copy: keras.Model, x_spec: Any) -> None:
    """Makes the variables of a copy that has none yet."""
    if copy.built and all(layer.built for layer in keras_models.flat_layers(copy)):
        return
    try:
        copy(keras.tree.map_structure(lambda s: keras.KerasTensor(tuple(s.shape), s.dtype.name), x_spec))
    except Exception as error:
        raise CopyRefusedError(f"a copy of {type(copy).__name__} is not built by a batch: {error}") from error


def _require_same_variables(copied: list[keras.Variable], own: list[keras.Variable]) -> None:
    if len(copied) != len(own):
        raise CopyRefusedError(f"the copy has {len(copied)} variables where the model has {len(own)}")
    for theirs, ours in zip(copied, own, strict=True):
        if tuple(theirs.shape) != tuple(ours.shape) or theirs.dtype != ours.dtype:
            raise CopyRefusedError(
                f"variable {theirs.path} of the copy is {theirs.dtype}{tuple(theirs.shape)} where the model "
                f"has {ours.path}, {ours.dtype}{tuple(ours.shape)}"
            )


def _require_same_layers(model: keras.Model, copy: keras.Model) -> None:
    ours, theirs = ([type(layer) for layer in keras_models.flat_layers(m)] for m in (model, copy))
    for kind, other in zip(ours, theirs, strict=False):
        if kind is not other:
            raise CopyRefusedError(f"the copy has a {other.__name__} for a {kind.__name__}")
    if len(ours) != len(theirs):
        raise CopyRefusedError(f"the copy has {len(theirs)} layers where the model has {len(ours)}")


def _require_same_computation(model: keras.Model, copy: keras.Model, x_spec: Any) -> None:
    """Compares what two models compute of a batch, operation by operation."""
    ours, theirs = _traced(model, x_spec, "its call"), _traced(copy, x_spec, "the call of its copy")
    alike = len(ours.constants) == len(theirs.constants)
    alike = alike and all(map(np.array_equal, ours.constants, theirs.constants))
    if not alike or computation(ours.graph) != computation(theirs.graph):
        raise CopyRefusedError("its copy computes something else")


def _traced(model: keras.Model, x_spec: Any, whose: str) -> TracedFunction:
    try:
        traced = TracedFunction(lambda x: model(x, training=False), x_spec)
    except Exception as error:  # of the user's code
        raise CopyRefusedError(
            f"calling it on a batch fails, so that a copy cannot be compared: {error}"
        ) from error
    for effect in traced.effects:
        raise CopyRefusedError(f"its call {effect}")
    handles = {id(handle) for v in model.variables for handle in keras_models.variable_handles(v)}
    foreign = [v.name for v in traced.variables if id(v.handle) not in handles]
    if foreign:
        raise CopyRefusedError(f"{whose} reads variables outside the model ({', '.join(foreign[:3])})")
    return traced


def _transfer(model: keras.Model, copy: keras.Model) -> None:
    """Gives the copy what layers keep next to their configuration and variables: tables, statistics."""
    for layer, other in zip(*map(keras_models.flat_layers, (model, copy)), strict=True):
        store: dict[str, Any] = {}
        layer.save_own_variables(store)
        if store:
            other.load_own_variables(store)
        if hasattr(layer, "save_assets"):  # tables, such as a vocabulary
            with tempfile.TemporaryDirectory() as directory:
                layer.save_assets(directory)
                other.load_assets(directory)


def _compile(model: keras.Model, copy: keras.Model) -> None:
    """Compiles the copy as the model, for functions that call `evaluate`.

    Where that is not possible it stays as it is, and `evaluate` raises Keras's error.
    """
    arguments = keras_copies.compile_arguments(model)
    if arguments is None:
        return
    for name in ("metrics", "weighted_metrics"):
        arguments[name] = keras.tree.map_structure(_fresh, arguments.get(name))
    if isinstance(model.optimizer, keras.optimizers.Optimizer):
        try:
            arguments["optimizer"] = type(model.optimizer).from_config(model.optimizer.get_config())
        except Exception:  # of a custom optimizer
            return
    copy.compile(**arguments)


def _fresh(metric: Any) -> Any:
    """Returns a new metric like one in which the model counts; a metric's name or function as it is."""
    is_own = isinstance(metric, keras.metrics.Metric)
    return type(metric).from_config(metric.get_config()) if is_own else metric


def _optimizer_variables(
    model: keras.Model, copy: keras.Model, state: ModelState
) -> list[tuple[keras.Variable, int]]:
    """Returns the variables of the copy's optimizer with their places, none if it is another one."""
    optimizers = copy.optimizer, model.optimizer
    if not all(isinstance(optimizer, keras.optimizers.Optimizer) for optimizer in optimizers):
        return []
    theirs, ours = (optimizer.variables for optimizer in optimizers)
    try:
        _require_same_variables(theirs, ours)
        return list(zip(theirs, _places_of(model, state, ours), strict=True))
    except CopyRefusedError:
        return []
