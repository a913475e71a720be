"""What Keras's callbacks remember, and what it may hold, to tell a state from one made by hand."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import keras
import numpy as np
import tensorflow as tf

__all__ = ["is_keras", "is_number", "of_keras", "settings_of", "unfit"]

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

# And those that are neither state nor an argument of the constructor: derived settings, clocks, resources.
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
    """Return what Keras's classes among the bases of `kind` keep: state, and all else."""
    state: set[str] = set()
    settings: set[str] = set()
    for base in filter(is_keras, kind.__mro__):
        state.update(_STATE.get(base.__name__, ()))
        settings.update(_MACHINERY.get(base.__name__, ()))
        if "__init__" in vars(base):
            settings.update(inspect.getfullargspec(base.__init__).args)  # type: ignore[misc]
    return frozenset(state), frozenset(settings - state)


@cache
def settings_of(kind: type) -> frozenset[str]:
    """Return the arguments of the constructors of Keras's classes among the bases of `kind`."""
    found: set[str] = set()
    for base in filter(is_keras, kind.__mro__):
        if "__init__" in vars(base):
            found.update(inspect.getfullargspec(base.__init__).args)  # type: ignore[misc]
    return frozenset(found - {"self"})


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


def _is_batch(value: Any) -> bool:
    return value is None or _is_count(value)


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


def _is_cooldown(value: Any) -> bool:
    return value is not None and is_number(value)  # it begins as the user's `cooldown`


def _are_names(value: Any) -> bool:
    return value is None or (isinstance(value, list) and all(isinstance(name, str) for name in value))


def _is_history(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(column, list) for column in value.values())


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
    "_last_batch_seen": ("a whole number or None", _is_batch),
    "_should_write_train_graph": ("True or False", _is_flag),
    "append": ("True or False", _is_flag),
    "best": ("a number", is_number),
    "cooldown_counter": ("a number", _is_cooldown),
    "epoch": ("a list of epochs", lambda value: isinstance(value, list) and all(map(_is_count, value))),
    "history": ("a dict of lists", _is_history),
    "keys": ("a list of names", _are_names),
}
