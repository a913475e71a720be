"""What callbacks remember from epoch to epoch, taken and put back for a rollback or a resume.

Of Keras's own callbacks that is what the table below names: their patience, best values and counters. Their
settings are left alone, so that a resumed run obeys the new ones, and because Keras changes one of them
(`min_delta` turns negative on first use). Of the attributes that a user's class adds, each that can be
copied is (see `values`); the others stay as they are in the live callback and are listed as left out.

A user's callback may say itself what it remembers: `get_state()` returns it and `set_state(state)` takes it
back. The names follow Keras's `get_weights` and `set_weights`, Keras Tuner, and the iterators of Grain. They
then stand for all attributes that Keras's classes did not add.

Use all of it on the training thread, and restore after `on_train_begin`, which resets much.
"""

from __future__ import annotations

import contextlib
import inspect
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import keras

from overlap_train._callbacks.kinds import unfit
from overlap_train._callbacks.values import Resource, copied, put_back, require_variables
from overlap_train.errors import CheckpointCorruptError, CheckpointMismatchError

__all__ = ["CallbackState", "capture", "capture_all", "check_all", "restore", "restore_all"]

_CUSTOM = "get_state()"

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
    "MonitorCallback": ("monitor_op",),
    "OrbaxCheckpoint": ("_async_futures", "_multihost_initialized", "checkpointer"),
    "TensorBoard": (
        *("_log_write_dir", "_train_dir", "_val_dir", "_writers", "_summary_module", "_prev_summary_state"),
        *("_start_batch", "_stop_batch", "_profiler_started", "_batch_trace_context", "_is_tracing"),
        *("_should_trace", "_previous_epoch_iterations", "_train_accumulated_time", "_batch_start_time"),
        "_epoch_start_time",
    ),
}


@dataclass(frozen=True)
class CallbackState:
    """What one callback remembered at one moment.

    Attributes:
        kind: the name of its class.
        values: its attributes by name, or what `get_state()` returned under that name.
        left_out: the attributes that could not be copied.
        from_disk: whether it was captured in another run, whose attributes may have been others.
        origins: the attributes themselves, to tell whether the live ones are still the same objects.
    """

    kind: str
    values: Mapping[str, Any] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    from_disk: bool = False
    origins: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)


def capture(callback: keras.callbacks.Callback) -> CallbackState:
    """Copies what a callback remembers.

    Lists, dicts and the arrays of a user's class are copied; what is immutable, the arrays of Keras's own
    callbacks, which replace and never change them, and the buffers of variables are shared.

    Raises:
        TypeError: `get_state` returned what cannot be copied.
    """
    values: dict[str, Any] = {}
    left_out = []
    for name in _remembered(callback):
        try:
            values[name] = _copied(callback, vars(callback)[name])
        except Resource:
            left_out.append(name)
    if _speaks_for_itself(callback):
        values[_CUSTOM] = _custom_state(callback)
    origins = {name: vars(callback)[name] for name in values if name != _CUSTOM}
    return CallbackState(type(callback).__name__, values, tuple(left_out), origins=origins)


def restore(callback: keras.callbacks.Callback, state: CallbackState) -> None:
    """Puts back what a callback remembered; a state can be put back any number of times.

    Variables are assigned, and a container that is still the same object is changed itself, so that a list
    shared with the callback's user stays shared. What cannot be copied now is left as it is. In the run that
    captured the state, attributes that came later are removed.

    Raises:
        CheckpointMismatchError: the callback is of another class, or a variable of it has changed its shape.
    """
    if type(callback).__name__ != state.kind:
        raise CheckpointMismatchError(_other_class(callback, state))
    live = vars(callback)
    same = _same_objects(live, state)
    for name, value in _to_restore(callback, state).items():
        with _named(state.kind, name):
            live[name] = put_back(
                live.get(name), value, in_place=name in same, copy_arrays=not _is_keras(type(callback))
            )
    if not state.from_disk:
        for name in set(_copyable(callback)).difference(state.values, state.left_out):
            del live[name]
    if _CUSTOM in state.values and _speaks_for_itself(callback):
        callback.set_state(copied(state.values[_CUSTOM]))


def capture_all(callbacks: Iterable[keras.callbacks.Callback]) -> tuple[CallbackState, ...]:
    """Captures each callback but progress bars, which remember nothing that outlives an epoch."""
    return tuple(capture(callback) for callback in _without_bars(callbacks))


def restore_all(callbacks: Iterable[keras.callbacks.Callback], states: Sequence[CallbackState]) -> None:
    """Restores each callback from the state at its position; nothing is changed if they do not fit.

    Raises:
        CheckpointMismatchError: the callbacks are others, more or fewer; the message says which.
        CheckpointCorruptError: a state holds what no callback of its class remembers.
    """
    chosen = _without_bars(callbacks)
    check_all(chosen, states)
    for callback, state in zip(chosen, states, strict=True):
        for name, value in _to_restore(callback, state).items():
            with _named(state.kind, name):
                require_variables(vars(callback).get(name), value)
    for callback, state in zip(chosen, states, strict=True):
        restore(callback, state)


def check_all(callbacks: Iterable[keras.callbacks.Callback], states: Sequence[CallbackState]) -> None:
    """Makes sure that each callback can be restored from the state at its position, and changes nothing.

    Raises:
        CheckpointMismatchError: the callbacks are others, more or fewer; the message says which.
        CheckpointCorruptError: a state holds what no callback of its class remembers.
    """
    chosen = _without_bars(callbacks)
    names, stored = [type(callback).__name__ for callback in chosen], [state.kind for state in states]
    for position in range(max(len(names), len(stored))):
        name, kind = names[position : position + 1], stored[position : position + 1]
        if name != kind:
            raise CheckpointMismatchError(
                f"Callback {position} was {kind[0] if kind else 'absent'} when the checkpoint was written, "
                f"and is {name[0] if name else 'absent'} now. Pass the same callbacks in the same order "
                f"({', '.join(stored) or 'none'}), or start afresh."
            )
    for callback, state in zip(chosen, states, strict=True):
        _check_values(callback, state)


def _check_values(callback: keras.callbacks.Callback, state: CallbackState) -> None:
    """Refuses attributes that `capture` takes from no callback of this class, and values of another type."""
    known, settings = _of_keras(type(callback))  # type: ignore[arg-type]
    for name, value in state.values.items():
        if name == _CUSTOM:
            continue
        reason = None
        if name in known and _is_keras(type(callback)):  # a custom class may keep something else there
            reason = unfit(name, value, callback.model)
        if name not in known and (name in settings or _is_of_class(type(callback), name)):
            reason = "is no state of it"
        if reason is not None:
            raise CheckpointCorruptError(
                f"its {state.kind}.{name} {reason}. Take an older checkpoint or start afresh."
            )


def _is_of_class(kind: type, name: str) -> bool:
    """Whether a name is that of a method or a property, which no attribute may hide."""
    found = inspect.getattr_static(kind, name, None)
    return (
        callable(found) or isinstance(found, (property, staticmethod, classmethod)) or name.startswith("__")
    )


def _to_restore(callback: keras.callbacks.Callback, state: CallbackState) -> dict[str, Any]:
    """Returns the attributes that take a value back: what cannot be copied now stays as it is."""
    live, now = vars(callback), _copyable(callback)
    return {n: v for n, v in state.values.items() if n != _CUSTOM and (n not in live or n in now)}


def _copyable(callback: keras.callbacks.Callback) -> list[str]:
    return [name for name in _remembered(callback) if _can_be_copied(callback, vars(callback)[name])]


def _same_objects(live: Mapping[str, Any], state: CallbackState) -> frozenset[str]:
    """Returns the attributes whose live object may be changed itself.

    In the run of the capture a later object may belong to somebody else, such as the logs that the trainer
    keeps. After a load there are no later ones, but two attributes may hold one object.
    """
    holders = Counter(id(value) for value in live.values())
    if state.from_disk:
        return frozenset(name for name, value in live.items() if holders[id(value)] == 1)
    same = (name for name, value in state.origins.items() if live.get(name) is value)
    return frozenset(name for name in same if holders[id(live[name])] == 1)


def _without_bars(callbacks: Iterable[keras.callbacks.Callback]) -> list[keras.callbacks.Callback]:
    return [callback for callback in callbacks if not isinstance(callback, keras.callbacks.ProgbarLogger)]


def _remembered(callback: keras.callbacks.Callback) -> list[str]:
    """Returns the attributes that are state, by the table or because Keras does not know them."""
    state, settings = _of_keras(type(callback))  # type: ignore[arg-type]
    custom = _speaks_for_itself(callback)
    return [name for name in vars(callback) if name in state or not (custom or name in settings)]


@cache
def _of_keras(kind: type) -> tuple[frozenset[str], frozenset[str]]:
    """Returns what Keras's classes among the bases of `kind` keep: state, and all else."""
    state: set[str] = set()
    settings: set[str] = set()
    for base in filter(_is_keras, kind.__mro__):
        state.update(_STATE.get(base.__name__, ()))
        settings.update(_MACHINERY.get(base.__name__, ()))
        if "__init__" in vars(base):
            settings.update(inspect.getfullargspec(base.__init__).args)  # type: ignore[misc]
    return frozenset(state), frozenset(settings - state)


def _is_keras(kind: type) -> bool:
    return kind.__module__.split(".")[0] == "keras"


def _speaks_for_itself(callback: Any) -> bool:
    return callable(getattr(callback, "get_state", None)) and callable(getattr(callback, "set_state", None))


def _custom_state(callback: Any) -> Any:
    state = callback.get_state()
    try:
        return copied(state)
    except Resource as error:
        raise TypeError(
            f"{type(callback).__name__}.get_state() returned a {error}, which cannot be stored. Return "
            "numbers, text, arrays, and lists and dicts of these."
        ) from error


def _copied(callback: keras.callbacks.Callback, value: Any) -> Any:
    if type(value) in (bool, int, float, str):
        return value
    foreign = _ModelVariables(callback.model)
    return copied(value, copy_arrays=not _is_keras(type(callback)), foreign=foreign)


def _can_be_copied(callback: keras.callbacks.Callback, value: Any) -> bool:
    try:
        copied(value, copy_arrays=False, foreign=_ModelVariables(callback.model))
    except Resource:
        return False
    return True


class _ModelVariables(Collection[int]):
    """The `id` of each variable of a model, listed when first asked: the snapshot restores these."""

    def __init__(self, model: keras.Model | None) -> None:
        self._model = model
        self._ids: frozenset[int] | None = None

    def __contains__(self, identity: object) -> bool:
        if self._ids is None:
            self._ids = frozenset(id(v) for v in self._variables())
        return identity in self._ids

    def __iter__(self) -> Any:
        return iter(self._ids or ())

    def __len__(self) -> int:
        return len(self._ids or ())

    def _variables(self) -> list[Any]:
        if self._model is None:
            return []
        optimizer = getattr(self._model, "optimizer", None)
        found = [*self._model.variables, *(optimizer.variables if optimizer is not None else ())]
        return [*found, *(v.value for v in found)]


@contextlib.contextmanager
def _named(kind: str, name: str) -> Iterator[None]:
    """Says which attribute it is that cannot be restored."""
    try:
        yield
    except ValueError as error:
        raise CheckpointMismatchError(
            f"{kind}.{name} cannot be restored: {error}. Build the callback as in the run that wrote the "
            "checkpoint, or start afresh."
        ) from error


def _other_class(callback: keras.callbacks.Callback, state: CallbackState) -> str:
    return (
        f"The state is that of a {state.kind}, and the callback is a {type(callback).__name__}. Pass the "
        "same callbacks in the same order, or start afresh."
    )
