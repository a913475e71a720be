"""Who draws and reads first: the training, its validation or a callback; under Keras they come in turn.

A shuffle of `tf.data` draws a new order whenever an iterator is made, a random generator of Python's whenever
it is called, and what Python makes batches from may change with each of them. Under Keras the training of an
epoch, its validation, its callbacks and the next epoch come in this order. So where it could be noticed, a
validation's batches are drawn before the training goes on, and evaluated while it does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from overlap_train._callbacks.hooks import (
    EVERY_HOOK,
    acts_in,
    acts_on_model_only,
    asks_schedule,
    is_declared_safe,
    may_change_training,
)
from overlap_train._callbacks.values import tf_variable
from overlap_train._data.feed import Feed
from overlap_train._data.pipeline import (
    UNKNOWN,
    cache_files,
    calls_python,
    captured_by,
    keeps_more_than_variables,
    python_functions,
    shuffles_of,
)
from overlap_train._inspection.code import Unclear
from overlap_train._inspection.reach import reached, reaches
from overlap_train._inspection.traced import CapturedVariable, TracedFunction
from overlap_train._keras import randomness as keras_randomness
from overlap_train._snapshot import StateVariable
from overlap_train._support.reasons import Reason

if TYPE_CHECKING:
    from overlap_train._fit.request import FitRequest

# In which code finds the variables that a pipeline writes to, if it can get hold of them at all.
_HOLDERS = (
    *(tf.Variable, keras.Variable, keras.layers.Layer, keras.random.SeedGenerator, tf.random.Generator),
    tf.data.Dataset,
)


def is_drawn_in_order(
    feed: Feed, data: Any, model: keras.Model, written: Iterable[CapturedVariable] = ()
) -> bool:
    """Whether the batches of a validation have to be drawn before the training goes on."""
    if feed.runs_python:
        return True
    if feed.files and feed.files & cache_files(keras.utils.unpack_x_y_sample_weight(data)[0]):
        return True
    try:
        if feed.shuffles and _is_shared(feed.shuffles, data):
            return True
        return _reached_of(_python_in(data), model, [], written) is not None
    except Unclear:
        return True


def follow_others(
    request: FitRequest, callbacks: Sequence[keras.callbacks.Callback], step: TracedFunction | None = None
) -> Iterator[Reason]:
    """Yields what the training data is made from and others change or draw from, so that it has to wait.

    Examples are adversarial rows, which the model makes, and a curriculum that follows the validation. A
    pipeline, which fetches ahead, may write to variables of the model or of the traced `step`. The Python
    of validation data may change the training, or end it.
    """
    feed, model, written = request.feed, request.model, step.written if step is not None else ()
    if names := _drawn_by_both(feed, model, step):
        cause = "the pipeline of the training data writes to variables of the model"
        yield Reason.of("data-follows", f"{cause} ({', '.join(names[:3])})")
    acting = [callback for callback in callbacks if not acts_on_model_only(callback)]
    try:
        names = _settable(feed, acting) if acting else []
        if names:
            cause = "the pipeline of the training data uses what a callback may set"
            yield Reason.of("data-follows", f"{cause} ({', '.join(names[:3])})")
        python = [("training", feed.python_sources if feed.runs_python else [], callbacks)]
        validated = [_python_in(each.data) for each in request.sets.values() if not each.concurrent]
        for role, sources, more in [*python, *(("validation", each, ()) for each in validated)]:
            if (target := _reached_of(sources, model, more, written)) is not None:
                kind = type(target).__name__
                yield Reason.of("data-follows", f"the Python of the {role} data can get hold of the {kind}")
        shuffles = feed.shuffles | _shuffles_of_python(feed.python_sources)
        yield from _drawing_with_training(request, callbacks, shuffles) if shuffles else ()
    except Unclear:
        cause = "the Python of the data, or a callback, can get hold of more objects than are looked through"
        yield Reason.of("data-shared", cause)


def _drawing_with_training(
    request: FitRequest, callbacks: Sequence[keras.callbacks.Callback], shuffles: frozenset[int]
) -> Iterator[Reason]:
    """Yields who draws from the shuffles of the training data, so that no pass of it alone can be made again.

    Each draw moves all later ones. A validation's comes where it belongs while the training goes on, but
    where that goes back, or has been ended meanwhile, the draws of validations would have to go back with it.
    """
    moving = [callback for callback in callbacks if _may_move(callback)]
    if moving and any(_is_shared(shuffles, each.data) for each in request.sets.values()):
        name = type(moving[0]).__name__
        cause = f"the training and the validation draw from one shuffle, and {name} may change or end it"
        yield Reason.of("data-shared", cause, "split the data before it is shuffled")
    for callback in callbacks:
        if is_declared_safe(callback) or type(callback) is keras.callbacks.History:
            continue
        if _reaches_a_shuffle(callback, shuffles):
            cause = f"{type(callback).__name__} may look at data that the training shuffles, too"
            yield Reason.of("data-shared", cause)
    for name, each in request.functions.items():
        if _reaches_a_shuffle(each.function, shuffles):
            cause = f"the evaluation function {name!r} may look at data that the training shuffles, too"
            yield Reason.of("data-shared", cause)


def reads(model: keras.Model, callback: keras.callbacks.Callback) -> bool:
    """Whether a model's Python may read what a callback notes in itself."""
    try:
        return reaches([model], [callback, vars(callback)]) is not None
    except Unclear:
        return True


def _may_move(callback: keras.callbacks.Callback) -> bool:
    """Whether a callback may have the training go back, or end it."""
    if isinstance(callback, keras.callbacks.EarlyStopping):
        return True
    return may_change_training(callback) and acts_in(callback, EVERY_HOOK) and not asks_schedule(callback)


def _is_shared(shuffles: frozenset[int], data: Any) -> bool:
    """Whether data draws from one of the shuffles, as far as their sources are known."""
    own = _shuffles_in(data)
    return bool(own & shuffles) or (bool(own) and UNKNOWN in shuffles | own)


def _reaches_a_shuffle(source: Any, shuffles: frozenset[int]) -> bool:
    return any(shuffles_of(dataset) & shuffles for dataset in reached([source], tf.data.Dataset))


def shared_draws(feed: Feed, sets: Iterable[Any], *, of_variables: bool) -> str | None:
    """Returns what the training and the validation data draw from in turn, or None.

    Variables count only if they are asked for. Python that can reach too many objects is not looked through.
    """
    of_training = {id(variable.handle): variable for variable in feed.captured}
    shuffles = feed.shuffles
    with contextlib.suppress(Unclear):
        shuffles = shuffles | _shuffles_of_python(feed.python_sources)
    for data in sets:
        with contextlib.suppress(Unclear):
            if shuffles & _shuffles_in(data) - {UNKNOWN}:
                return "a shuffle"
        inputs = keras.utils.unpack_x_y_sample_weight(data)[0]
        if keeps_more_than_variables(inputs) and len(feed.reads) > len(feed.captured):
            return "a table, an iterator, a queue or a captured dataset"
        for variable in captured_by(inputs) if of_variables else ():
            other = of_training.get(id(variable.handle))
            if other is not None and (variable.written or other.written):
                return f"the variable {variable.name}"
    return None


def _drawn_by_both(feed: Feed, model: keras.Model, step: TracedFunction | None) -> list[str]:
    """Returns the variables of the model and the step to which the pipeline writes."""
    own = [StateVariable.of_keras(variable) for variable in model.variables] if feed.written_variables else []
    handles = {id(handle) for variable in own for handle in variable.handles}
    if step is not None:
        handles |= {id(variable.handle) for variable in step.variables}
    return [variable.name for variable in feed.written_variables if id(variable.handle) in handles]


def _settable(feed: Feed, callbacks: Sequence[keras.callbacks.Callback]) -> list[str]:
    """Returns what callbacks may set without a comparison: variables that the pipeline writes to, tables."""
    tables = list(feed.reads[len(feed.captured) :])
    if not feed.written_variables:
        return tables
    # From the global generators any function of a library may draw that a callback calls.
    holders = [*reached(callbacks, *_HOLDERS), *keras_randomness.global_variables().values()]
    handles = {id(handle) for holder in holders for handle in _handles_of(holder)}
    return [*(each.name for each in feed.written_variables if id(each.handle) in handles), *tables]


def _handles_of(holder: Any) -> list[Any]:
    """Returns the handles of the variables that something holds, or is."""
    if isinstance(holder, tf.data.Dataset):
        return [variable.handle for variable in captured_by(holder)]
    if isinstance(holder, (keras.random.SeedGenerator, tf.random.Generator)):
        holder = holder.state
    variables = map(tf_variable, getattr(holder, "variables", [holder]))
    return [each.handle for each in variables if isinstance(each, tf.Variable)]


def _reached_of(
    sources: Sequence[Any],
    model: keras.Model,
    callbacks: Sequence[keras.callbacks.Callback],
    written: Iterable[CapturedVariable],
) -> Any | None:
    """Returns the first object that a training changes and `sources` can get hold of, or None."""
    layers = [layer for layer in model._flatten_layers() if layer.variables]
    targets = [*layers, *model.variables, model, model.optimizer, getattr(model, "history", None), *callbacks]
    if model.optimizer is not None:
        targets += model.optimizer.variables
    target = reaches(sources, [each for each in targets if each is not None])
    if target is not None:
        return target
    handles = {id(variable.handle) for variable in written}
    held = reached(sources, tf.Variable, keras.Variable) if handles else ()
    return next((each for each in held if not handles.isdisjoint(map(id, _handles_of(each)))), None)


def _shuffles_in(data: Any) -> frozenset[int]:
    """Returns the shuffles of validation data, and of the datasets that its Python can get hold of."""
    data = keras.utils.unpack_x_y_sample_weight(data)[0]
    return shuffles_of(data) | _shuffles_of_python(_python_in(data))


def _shuffles_of_python(sources: Sequence[Any]) -> frozenset[int]:
    return frozenset().union(*map(shuffles_of, reached(sources, tf.data.Dataset)))


def _python_in(data: Any) -> list[Any]:
    """Returns what of validation data, as the user gave it, is Python that makes batches."""
    data = keras.utils.unpack_x_y_sample_weight(data)[0]
    if isinstance(data, tf.data.Dataset):
        return python_functions(data) if calls_python(data) else []
    arrays = (np.ndarray, tf.Tensor, tf.RaggedTensor, tf.SparseTensor, list, tuple, dict, type(None))
    return [] if isinstance(data, arrays) or hasattr(data, "__array__") else [data]
