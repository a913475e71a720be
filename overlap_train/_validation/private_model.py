"""A model of a snapshot's weights, private to an evaluation function and on the snapshot's memory.

It is made on the training thread before the training begins, and belongs to the function's thread after that.
A copy that might answer otherwise than the model itself is refused: what differs from Keras must not be
silent.
"""

from __future__ import annotations

import tempfile
import textwrap
import types
import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from overlap_train._inspection.graph import computation
from overlap_train._inspection.traced import TracedFunction
from overlap_train._keras import copies as keras_copies
from overlap_train._keras import models as keras_models
from overlap_train._snapshot import ModelState, StateVariable, Values, same_bits
from overlap_train._validation.attributes import Attributes, is_stock

__all__ = ["CopyRefusedError", "PrivateModel", "make_private_model", "require_no_outside"]


class CopyRefusedError(Exception):
    """Says why a model has no private copy; not for users."""


class PrivateModel:
    """A copy of a model whose variables take over a snapshot's values. One thread at a time.

    Attributes:
        model: the copy.
    """

    def __init__(
        self, model: keras.Model, variables: list[tuple[keras.Variable, int]], given: Attributes | None = None
    ) -> None:
        """Takes a copy.

        Args:
            model: the copy.
            variables: its variables, each with its place in `Values.flat`.
            given: the attributes that it has been given.
        """
        self.model = model
        self._given = given
        self._variables = [(StateVariable.of_keras(variable), place) for variable, place in variables]

    def adopt(self, values: Values, attributes: Attributes | None = None) -> None:
        """Gives the copy a snapshot's values, on the snapshot's memory, and its attributes."""
        flat = values.flat()
        if attributes is not None:
            attributes.give(self.model, self._given)
            self._given = attributes
        for variable, place in self._variables:
            variable.assign(flat[place])
        self.model.stop_training = False

    def changed(self, values: Values) -> list[str]:
        """Returns the names of what differs from the values that were adopted."""
        flat = values.flat()
        found = [v.name for v, place in self._variables if not same_bits(v.read(), flat[place])]
        return found + (["stop_training"] if self.model.stop_training else [])


def make_private_model(
    model: keras.Model, state: ModelState, x_spec: Any, clone: Callable[[], keras.Model] | None = None
) -> PrivateModel:
    """Copies a model. On the training thread; leaves random states and running names as they were.

    Args:
        model: built and compiled.
        state: the variables of the training.
        x_spec: nested `tf.TensorSpec` of the input of a batch.
        clone: makes the copy; None makes it from the model's configuration.

    Raises:
        CopyRefusedError: there is no copy that is known to answer like the model.
    """
    with keras_copies.undisturbed(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        copy = _from_configuration(model) if clone is None else _cloned(clone, model)
        _build(copy, x_spec)
        variables = list(zip(copy.variables, _places_of(model, state, model.variables), strict=False))
        _require_same_variables(copy.variables, model.variables)
        keras_copies.name_alike(copy.variables, model.variables)
        given = Attributes.of(model)
        _require_same_layers(model, copy)
        if clone is None:
            _transfer(model, copy)
        given.give(copy, None)
        if not copy.compiled:
            _compile(model, copy)
        keras_copies.build_optimizer(copy)
        if clone is not None or not all(map(is_stock, keras_models.flat_layers(model))):
            _require_same_computation(model, copy, x_spec)
    return PrivateModel(copy, variables + _optimizer_variables(model, copy, state), given)


def _places_of(model: keras.Model, state: ModelState, variables: list[keras.Variable]) -> list[int]:
    """Returns where the values of a model's variables are in `Values.flat`.

    Raises:
        CopyRefusedError: the training does not know one of them.
    """
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
    except Exception as error:  # a configuration of the user's own raises anything
        text = textwrap.shorten(str(error), 160, placeholder=" ...")
        raise CopyRefusedError(
            f"{type(model).__name__} is not made anew by its configuration ({type(error).__name__}: {text})"
        ) from error
    if type(copy) is not type(model):
        raise CopyRefusedError(f"{type(model).__name__}.from_config makes a {type(copy).__name__}")
    return copy


def _cloned(clone: Callable[[], keras.Model], model: keras.Model) -> keras.Model:
    """Returns what the user's function makes, which is to be another model than the trained one.

    Raises:
        TypeError: it is no model.
        ValueError: it is the trained model.
    """
    copy = clone()
    if not keras_models.is_trainer(copy):
        raise TypeError(f"clone must return a Keras model; it returned a {type(copy).__name__}")
    if any(layer is model for layer in [copy, *keras_models.flat_layers(copy)]):
        raise ValueError("clone must make a new model; it returned the one that is trained")
    return copy


def _custom_objects(model: keras.Model) -> dict[str, Any]:
    """Returns the classes and functions of the user's that are found in a model, by name.

    Raises:
        CopyRefusedError: two of them have the same name.
    """
    found: dict[str, Any] = {}
    for layer in keras_models.flat_layers(model):
        own = [type(layer), *(v for v in vars(layer).values() if isinstance(v, types.FunctionType))]
        for each in own:
            if keras_models.is_stock_method(each):
                continue
            name = keras.saving.get_registered_name(each)
            if found.setdefault(name, each) is not each:
                raise CopyRefusedError(f"its layers use two functions or classes of the name {name!r}")
    return found


def _build(copy: keras.Model, x_spec: Any) -> None:
    """Makes the variables of a copy, if it has not.

    Raises:
        CopyRefusedError: it cannot be called on such a batch.
    """
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
    own, other = ([type(each) for each in keras_models.flat_layers(m)] for m in (model, copy))
    for ours, theirs in zip(own, other, strict=False):
        if ours is not theirs:
            raise CopyRefusedError(f"the copy has a {theirs.__name__} for a {ours.__name__}")
    if len(own) != len(other):
        raise CopyRefusedError(f"the copy has {len(other)} layers where the model has {len(own)}")


def _require_same_computation(model: keras.Model, copy: keras.Model, x_spec: Any) -> None:
    """Compares what two models compute of a batch, operation by operation.

    Raises:
        CopyRefusedError: it is not the same, or cannot be compared.
    """
    ours, theirs = _traced(model, x_spec, "its call"), _traced(copy, x_spec, "the call of its copy")
    alike = len(ours.constants) == len(theirs.constants)
    if not alike or not all(map(np.array_equal, ours.constants, theirs.constants)):
        raise CopyRefusedError("its copy computes something else")
    if computation(ours.graph) != computation(theirs.graph):
        raise CopyRefusedError("its copy computes something else")


def _traced(model: keras.Model, x_spec: Any, whose: str) -> TracedFunction:
    try:
        traced = TracedFunction(lambda x: model(x, training=False), x_spec)
    except Exception as error:  # of the user's own code
        raise CopyRefusedError(
            f"calling it on a batch fails, so that a copy cannot be compared: {error}"
        ) from error
    for effect in traced.effects:
        raise CopyRefusedError(f"its call {effect}")
    own = {id(handle) for v in model.variables for handle in keras_models.variable_handles(v)}
    foreign = [v.name for v in traced.variables if id(v.handle) not in own]
    if foreign:
        raise CopyRefusedError(f"{whose} reads variables outside the model ({', '.join(foreign[:3])})")
    return traced


def _transfer(model: keras.Model, copy: keras.Model) -> None:
    """Gives the copy what layers keep beside their configuration and variables: tables, statistics."""
    layers = list(zip(keras_models.flat_layers(model), keras_models.flat_layers(copy), strict=True))
    for own, other in layers:
        store: dict[str, Any] = {}
        own.save_own_variables(store)
        if store:
            other.load_own_variables(store)
        if hasattr(own, "save_assets"):  # tables, such as a vocabulary
            with tempfile.TemporaryDirectory() as directory:
                own.save_assets(directory)
                other.load_assets(directory)


def _compile(model: keras.Model, copy: keras.Model) -> None:
    """Compiles the copy as the model, for functions that call `evaluate`.

    Where that is not possible it stays as it is, and `evaluate` raises Keras's error.
    """
    arguments = keras_copies.compile_arguments(model)
    if arguments is None:
        return
    for name in ("metrics", "weighted_metrics"):
        arguments[name] = _fresh(arguments.get(name))
    if isinstance(model.optimizer, keras.optimizers.Optimizer):
        try:
            arguments["optimizer"] = type(model.optimizer).from_config(model.optimizer.get_config())
        except Exception:  # of an optimizer of the user's own
            return
    copy.compile(**arguments)


def _fresh(metrics: Any) -> Any:
    """Returns metrics as `compile` takes them, with none that the model counts in."""
    if isinstance(metrics, keras.metrics.Metric):
        return type(metrics).from_config(metrics.get_config())
    if isinstance(metrics, dict):
        return {name: _fresh(metric) for name, metric in metrics.items()}
    return [_fresh(metric) for metric in metrics] if isinstance(metrics, (list, tuple)) else metrics


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
