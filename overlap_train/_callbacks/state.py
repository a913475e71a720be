"""What callbacks remember from epoch to epoch, taken for a checkpoint and put back for a resume.

For Keras's own callbacks a table names it: their patience, best values and counters. Their settings are left
alone, so that a resumed run obeys the new ones, and because Keras changes one of them (`min_delta` turns
negative on first use). Of the attributes that a user's class adds, the plain ones are taken (see
`_copies.values`).

A user's callback may define what it remembers: `get_state()` returns it and `set_state(state)` takes it back,
in place of all attributes that Keras's classes did not add. The names follow Keras's `get_weights` and
`set_weights`, Keras Tuner, and the iterators of Grain.

Use all of it on the training thread, and restore after `on_train_begin`, which resets much.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from overlap_train._copies.restoring import Restorer
from overlap_train._copies.values import (
    GET_STATE,
    Copier,
    Foreign,
    NotPlainError,
    ObjectValue,
    has_get_state,
    is_code,
    keeps,
    model_variables,
    parts_of,
    places,
)
from overlap_train._inspection.code import variables_of
from overlap_train.errors import CheckpointCorruptError

# For each class of Keras: the attributes that are state.
_STATE: Mapping[str, tuple[str, ...]] = {
    "BackupAndRestore": ("_batches_seen_since_last_saving", "_last_batch_seen", "_current_epoch"),
    # `append_header` and the open file are what on_train_begin has found; `append` see `rewind`.
    "CSVLogger": ("keys", "append"),
    "EarlyStopping": ("wait", "stopped_epoch", "best_weights", "best_epoch"),
    "History": ("history", "epoch"),
    "ModelCheckpoint": ("_batches_seen_since_last_saving", "_last_batch_seen", "_current_epoch"),
    "MonitorCallback": ("best",),
    "OrbaxCheckpoint": (
        *("_batches_seen_since_last_saving", "_last_batch_seen", "_total_batches_seen", "_current_epoch"),
    ),
    "ReduceLROnPlateau": ("cooldown_counter", "wait"),
    "SwapEMAWeights": ("_ema_weights_in_model",),
    "TensorBoard": ("_global_train_batch", "_global_test_batch", "_should_write_train_graph"),
}

# Attributes that are neither state nor an argument of the constructor: derived settings, clocks, resources.
_MACHINERY: Mapping[str, tuple[str, ...]] = {
    "BackupAndRestore": (
        *("_weights_path", "_training_metadata_path", "_prev_weights_path", "_prev_training_metadata_path"),
    ),
    "CSVLogger": ("sep", "writer", "append_header", "csv_file"),
    "Callback": ("params", "_model"),
    "CallbackList": (
        *("_in_begin_end_block_count", "_executor", "_async_train", "_async_test", "_async_predict"),
        *("_futures", "_progbar", "_history"),
    ),
    "MonitorCallback": ("monitor_op",),
    "OrbaxCheckpoint": ("_async_futures", "_multihost_initialized", "checkpointer"),
    "TensorBoard": (
        *("_log_write_dir", "_train_dir", "_val_dir", "_writers", "_summary_module", "_prev_summary_state"),
        *("_start_batch", "_stop_batch", "_profiler_started", "_batch_trace_context", "_is_tracing"),
        *("_should_trace", "_previous_epoch_iterations", "_train_accumulated_time", "_batch_start_time"),
        "_epoch_start_time",
    ),
}


@cache
def of_keras(kind: type) -> tuple[frozenset[str], frozenset[str]]:
    """Return the attributes that Keras's classes among the bases of `kind` add: state, and all others."""
    names = [base.__name__ for base in filter(is_keras, kind.__mro__)]
    state = frozenset(attribute for name in names for attribute in _STATE.get(name, ()))
    machinery = frozenset(attribute for name in names for attribute in _MACHINERY.get(name, ()))
    return state, (machinery | settings_of(kind)) - state


@cache
def settings_of(kind: type) -> frozenset[str]:
    """Return the arguments of the constructors of Keras's classes among the bases of `kind`."""
    constructors = [vars(base).get("__init__") for base in filter(is_keras, kind.__mro__)]
    names = {name for each in constructors if each is not None for name in inspect.getfullargspec(each).args}
    return frozenset(names - {"self"})


def is_keras(kind: type) -> bool:
    """Whether a class is one of Keras's own."""
    return kind.__module__.split(".")[0] == "keras"


def unfit(name: str, value: Any, model: keras.Model | None) -> str | None:
    """Return in words why a value of a checkpoint cannot be that of an attribute of Keras's, or None.

    The weights of the callback's model have the shapes of those that are remembered.
    """
    if name == "best_weights":
        return None if value is None or _are_weights(value, model) else "does not hold the model's weights"
    expected, fits = _EXPECTED.get(name, ("a whole number", _is_count))
    return None if fits(value) else f"is of type {type(value).__name__}, where {expected} belongs"


def _is_count(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _is_flag(value: Any) -> bool:
    return isinstance(value, (bool, np.bool_))


def is_number(value: Any) -> bool:
    """Whether a value is None or a number that Keras can compare with a metric.

    An array of one element is one, too: whatever a callback has put into the logs.
    """
    if value is None:
        return True
    if not isinstance(value, (int, float, np.generic, np.ndarray, tf.Tensor)):
        return False
    try:
        bool(keras.ops.less(0.5, value))
    except Exception:  # Keras and TensorFlow raise many types for what they cannot compare
        return False
    return True


def _are_weights(value: Any, model: keras.Model | None) -> bool:
    # TensorFlow returns a weight without axes, as a Normalization has one, as a scalar of NumPy's.
    if not isinstance(value, list) or not all(isinstance(each, (np.ndarray, np.generic)) for each in value):
        return False
    if model is None:
        return True
    return [(a.shape, a.dtype.name) for a in value] == [(tuple(w.shape), w.dtype) for w in model.weights]


# The attributes that are not listed are counters.
_EXPECTED: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "_ema_weights_in_model": ("True or False", _is_flag),
    "_last_batch_seen": ("a whole number or None", lambda value: value is None or _is_count(value)),
    "_should_write_train_graph": ("True or False", _is_flag),
    "append": ("True or False", _is_flag),
    "best": ("a number", is_number),
    # It begins as the user's `cooldown`, which may be any number.
    "cooldown_counter": ("a number", lambda value: value is not None and is_number(value)),
    "epoch": ("a list of epochs", lambda value: isinstance(value, list) and all(map(_is_count, value))),
    "history": (
        "a dict of lists",
        lambda value: isinstance(value, dict) and all(isinstance(each, list) for each in value.values()),
    ),
    "keys": (
        "a list of names",
        lambda value: value is None or (isinstance(value, list) and all(isinstance(n, str) for n in value)),
    ),
}


def capture_all(callbacks: Iterable[keras.callbacks.Callback]) -> tuple[ObjectValue, ...]:
    """Copy what each callback remembers, but for progress bars, whose memory ends with an epoch.

    Shared are what is immutable, the buffers of variables, and the arrays of Keras's own callbacks, which
    replace and never change them. A `get_state` that returned what is not plain is a TypeError.
    """
    callbacks = without_bars(callbacks)
    copier = Copier(_foreign(callbacks), parts=_parts, apart=callbacks)
    states = []
    for callback in callbacks:
        copier.copy_arrays = not is_keras(type(callback))
        try:
            states.append(copier.object(callback, _remembered(callback)))
        except NotPlainError as error:
            raise TypeError(
                f"{type(callback).__name__}.get_state() returned a {error}, which cannot be stored. Return "
                "numbers, text, arrays, and lists and dicts of these."
            ) from error
    return tuple(states)


def _foreign(callbacks: Iterable[keras.callbacks.Callback]) -> Foreign:
    model = next((each.model for each in callbacks if each.model is not None), None)
    return functools.partial(model_variables, model)


def restore_all(pairs: Sequence[tuple[keras.callbacks.Callback, ObjectValue]]) -> tuple[str, ...]:
    """Restore each callback from its state, which `check_all` has checked.

    Returns the attributes that could not be put back, each with the reason; they stay as they are.
    """
    callbacks = [callback for callback, _ in pairs]
    restorer = Restorer(_foreign(callbacks), parts=_parts, apart=callbacks)
    for callback, state in pairs:
        restorer.attributes(callback, state.attributes, state.kind)
    return tuple(restorer.stay)


def check_all(pairs: Iterable[tuple[keras.callbacks.Callback, ObjectValue]]) -> None:
    """Raise CheckpointCorruptError unless each callback can be restored from its state.

    Refuses attributes that no callback of the class has, and values of another type.
    """
    for callback, state in pairs:
        kind = type(callback)
        names, others = of_keras(kind)  # type: ignore[arg-type]
        for name, value in state.attributes.items():
            reason = None
            if name in names and is_keras(kind):  # a custom class may keep something else there
                reason = unfit(name, value, callback.model)
            if name not in {*names, GET_STATE} and (name in others or not keeps(kind, name)):
                reason = "is no state of it"
            if reason is not None:
                raise CheckpointCorruptError(
                    f"its {state.kind}.{name} {reason}. Take an older checkpoint or start afresh."
                )


class Unstored:
    """Names what callbacks remember and no checkpoint holds, each attribute once.

    That is what is not plain, variables and objects that were not there when the fit began, and functions
    that have taken the place of others since. Functions, parts of the model and settings that are still the
    same are not named: the resumed program has them too.
    """

    def __init__(self) -> None:
        self._reported: set[str] = set()
        self._initial: list[tuple[Mapping[str, int], Mapping[str, Any]]] = []

    def begin(self, callbacks: Iterable[keras.callbacks.Callback], states: Sequence[ObjectValue]) -> None:
        """Note how the callbacks stand behind `on_train_begin`."""
        self._initial = [
            (places(state, state.kind), {n: v for n, v in variables_of(callback).items() if is_code(v)})
            for callback, state in zip(without_bars(callbacks), states, strict=True)
        ]

    def names(
        self, states: Sequence[ObjectValue], callbacks: Iterable[keras.callbacks.Callback] = ()
    ) -> list[str]:
        """Return the names that have not been returned yet, of states and of the callbacks they are of."""
        names = [f"{state.kind}.{name}" for state in states for name in state.lost]
        triples = zip(without_bars(callbacks), states, self._initial, strict=False)
        for callback, state, (counts, code) in triples:
            attributes = variables_of(callback)
            names += [p for p, n in places(state, state.kind).items() if n > counts.get(p, 0)]
            for name, function in code.items():
                if is_code(attributes.get(name)) and attributes[name] != function:
                    names.append(f"{state.kind}.{name}")
        new = [name for name in dict.fromkeys(names) if name not in self._reported]
        self._reported.update(new)
        return new


def without_bars(callbacks: Iterable[keras.callbacks.Callback]) -> list[keras.callbacks.Callback]:
    """Return all but progress bars."""
    return [callback for callback in callbacks if not isinstance(callback, keras.callbacks.ProgbarLogger)]


def _parts(value: Any) -> Mapping[str, Any] | None:
    return _remembered(value) if isinstance(value, keras.callbacks.Callback) else parts_of(value)


def _remembered(callback: keras.callbacks.Callback) -> dict[str, Any]:
    """Return the attributes that are state, by the table or because Keras does not know them."""
    state, settings = of_keras(type(callback))  # type: ignore[arg-type]
    is_custom = has_get_state(callback)
    parts = {
        name: part
        for name, part in variables_of(callback).items()
        if name in state or not (is_custom or name in settings)
    }
    return parts | {GET_STATE: None} if is_custom else parts
