"""Whether the training, the validation and callbacks draw from the same source of chance.

A shuffle of `tf.data` draws a new order whenever an iterator is made, and a random generator of Python's
whenever it is asked. Who draws first gets the first number. Under Keras the training of an epoch, its
validation, its callbacks and the next epoch draw in this order; a training that runs ahead would draw before
the validation and the callbacks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from overlap_train._callbacks.hooks import acts_on_model_only, is_declared_safe
from overlap_train._data.feed import Feed
from overlap_train._data.pipeline import UNKNOWN, captured_by, shuffles_of
from overlap_train._fit.shared_state import python_in
from overlap_train._inspection.reach import reached, reaches
from overlap_train._inspection.traced import CapturedVariable
from overlap_train._keras import randomness as keras_randomness
from overlap_train._snapshot import StateVariable
from overlap_train._support.reasons import Reason

__all__ = ["draw_in_turn", "handles_of", "read_the_training", "settable", "shared_shuffles"]

# In which code finds the variables that a pipeline reads, if it can get hold of them at all.
_HOLDERS = (
    *(tf.Variable, keras.Variable, keras.layers.Layer, keras.metrics.Metric, keras.optimizers.Optimizer),
    *(keras.random.SeedGenerator, tf.random.Generator, tf.data.Dataset),
)


def draw_in_turn(
    feed: Feed, sets: Iterable[Any], callbacks: Sequence[keras.callbacks.Callback]
) -> Iterator[Reason]:
    """Yields which shuffle others draw from as well, so that a validation has to be waited for.

    Args:
        feed: the training data.
        sets: the validation sets as the user gave them.
        callbacks: the user's.
    """
    drawn, validated = _shuffles_of_both(feed, sets)
    if drawn & validated == {UNKNOWN}:
        cause = "the training and the validation data may draw from one iterator or queue, or one dataset"
        yield Reason.of("data-shared", f"{cause} that is not found")
    elif drawn & validated:
        yield Reason.of("data-shared", "the training and the validation data come from one shuffle")
    shuffles = drawn | validated
    for callback in callbacks if shuffles else ():
        if is_declared_safe(callback) or type(callback) is keras.callbacks.History:
            continue
        datasets = reached([callback], tf.data.Dataset)
        if any(shuffles_of(dataset) & shuffles for dataset in datasets):
            cause = f"{type(callback).__name__} may look at data that the fit shuffles, too"
            yield Reason.of("data-shared", cause)


def shared_shuffles(feed: Feed, sets: Iterable[Any]) -> bool:
    """Whether the training and the validation data come from one shuffle that draws a new order each time.

    Args:
        feed: the training data.
        sets: the validation sets as the user gave them.

    Raises:
        Unclear: there is too much to look through.
    """
    drawn, validated = _shuffles_of_both(feed, sets)
    return bool(drawn & validated - {UNKNOWN})


def _shuffles_of_both(feed: Feed, sets: Iterable[Any]) -> tuple[frozenset[int], frozenset[int]]:
    validated: frozenset[int] = frozenset().union(*map(_shuffles_in, sets))
    return feed.shuffles | _shuffles_of_python(feed.python_sources), validated


def settable(feed: Feed, model: keras.Model, callbacks: Sequence[keras.callbacks.Callback]) -> list[str]:
    """Returns the names of what the training data's pipeline reads and code of the user's may set.

    Args:
        feed: the training data.
        model: which callbacks can get hold of.
        callbacks: the user's.

    Raises:
        Unclear: there is too much to look through.
    """
    own = [callback for callback in callbacks if not acts_on_model_only(callback)]
    if not own or not feed.reads:
        return []
    found = [holder for callback in own for holder in reached([callback], *_HOLDERS)]
    # From the global generators any function of a library may draw that a callback calls.
    found += [model, model.optimizer, *keras_randomness.global_variables()]
    handles = {id(handle) for holder in found for handle in handles_of(holder)}
    variables = [variable.name for variable in feed.captured if id(variable.handle) in handles]
    return [*variables, *feed.reads[len(feed.captured) :]]  # behind the variables: tables


def handles_of(holder: Any) -> list[Any]:
    """Returns the handles of the variables that something holds, or is."""
    if isinstance(holder, tf.data.Dataset):
        return [variable.handle for variable in captured_by(holder)]
    if isinstance(holder, (keras.random.SeedGenerator, tf.random.Generator)):
        holder = holder.state
    variables = getattr(holder, "variables", [holder])
    known = [StateVariable.of_keras(each) for each in variables if isinstance(each, keras.Variable)]
    values = [value for each in variables for value in getattr(each, "values", [each])]
    others = [each.handle for each in values if isinstance(each, tf.Variable)]
    return [*others, *(handle for each in known for handle in each.handles)]


def read_the_training(
    feed: Feed,
    sets: Iterable[Any],
    model: keras.Model,
    callbacks: Sequence[keras.callbacks.Callback],
    written: Iterable[CapturedVariable] = (),
) -> Iterator[Reason]:
    """Yields which Python makes batches from what a training changes.

    Such as adversarial examples, which a model makes, or a curriculum that follows the validation.

    Args:
        feed: the training data.
        sets: the validation sets as the user gave them.
        model: that is trained.
        callbacks: of the fit.
        written: the variables to which the training step may write.
    """
    handles = {id(variable.handle) for variable in written}
    layers = [layer for layer in model._flatten_layers() if layer.variables]
    changed = [*layers, *model.variables, model, model.optimizer, getattr(model, "history", None), *callbacks]
    if model.optimizer is not None:
        changed += model.optimizer.variables
    targets = [each for each in changed if each is not None]
    validated = [source for data in sets for source in python_in(data)]
    training = feed.python_sources if feed.runs_python else ()
    for role, sources in (("validation", validated), ("training", training)):
        found = reaches(sources, targets) if sources else None
        if found is None and sources:
            found = _variable_in(sources, handles)
        if found is not None:
            kind = type(found).__name__
            yield Reason.of("data-follows", f"the Python of the {role} data can get hold of the {kind}")


def _variable_in(sources: Sequence[Any], handles: set[int]) -> Any | None:
    """Returns the first variable that code can get hold of and whose handle is one of some, or None."""
    for found in reached(sources, tf.Variable, keras.Variable):
        variable = found.value if isinstance(found, keras.Variable) else found
        if id(getattr(variable, "handle", None)) in handles:
            return found
    return None


def _shuffles_in(data: Any) -> frozenset[int]:
    """Returns the shuffles of validation data, and of the datasets that its Python can get hold of."""
    if isinstance(data, tuple) and len(data) == 1:
        (data,) = data
    return shuffles_of(data) | _shuffles_of_python(python_in(data))


def _shuffles_of_python(sources: Sequence[Any]) -> frozenset[int]:
    datasets = reached(sources, tf.data.Dataset) if sources else ()
    return frozenset().union(*map(shuffles_of, datasets))
