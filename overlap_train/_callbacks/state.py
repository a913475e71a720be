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
from typing import Any

import keras

from overlap_train._callbacks.kinds import is_keras, of_keras, unfit
from overlap_train._callbacks.objects import (
    Classes,
    NotPutBackError,
    attributes_of,
    check_objects,
    class_for,
)
from overlap_train._callbacks.placing import put_back, require_place
from overlap_train._callbacks.values import Resource, copied
from overlap_train.errors import CheckpointCorruptError, CheckpointMismatchError

__all__ = ["CallbackState", "capture", "capture_all", "check_all", "restore", "restore_all"]

_CUSTOM = "get_state()"


@dataclass(frozen=True)
class CallbackState:
    """What one callback remembered at one moment.

    Attributes:
        kind: the name of its class.
        values: its attributes by name, or what `get_state()` returned under that name.
        left_out: the attributes that could not be copied.
        lost: those of them, and of what the attributes hold, that a training may change; the others are
            functions, parts of the model and the like.
        from_disk: whether it was captured in another run, whose attributes may have been others.
        origins: the attributes themselves, to tell whether the live ones are still the same objects.
    """

    kind: str
    values: Mapping[str, Any] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
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
    left_out, lost = [], []
    for name in _remembered(callback):
        try:
            values[name] = _copied(callback, vars(callback)[name])
        except Resource as error:
            left_out.append(name)
            lost += [] if error.constant else [name]
        else:
            lost += [f"{name}.{inner}" for inner in getattr(values[name], "lost", ())]
    if _speaks_for_itself(callback):
        values[_CUSTOM] = _custom_state(callback)
    origins = {name: vars(callback)[name] for name in values if name != _CUSTOM}
    return CallbackState(type(callback).__name__, values, tuple(left_out), tuple(lost), origins=origins)


def restore(callback: keras.callbacks.Callback, state: CallbackState) -> tuple[str, ...]:
    """Puts back what a callback remembered; a state can be put back any number of times.

    Variables are assigned, and a container that is still the same object is changed itself, so that a list
    shared with the callback's user stays shared. What cannot be copied now is left as it is. In the run that
    captured the state, attributes that came later are removed.

    Returns:
        The attributes whose objects could not be put back, each with the reason; they stay as they are.

    Raises:
        CheckpointMismatchError: the callback is of another class, or a variable of it has changed its shape.
    """
    if type(callback).__name__ != state.kind:
        raise CheckpointMismatchError(_other_class(callback, state))
    live = vars(callback)
    same, classes, arrays = _same_objects(live, state), class_for(callback), not is_keras(type(callback))
    stay = []
    for name, value in _to_restore(callback, state).items():
        with _named(state.kind, name):
            try:
                require_place(live.get(name), value, classes)
                live[name] = put_back(
                    live.get(name), value, in_place=name in same, copy_arrays=arrays, classes=classes
                )
            except NotPutBackError as error:
                stay.append(f"{state.kind}.{name} ({error})")
    if not state.from_disk:
        for name in set(_copyable(callback)).difference(state.values, state.left_out):
            del live[name]
    if _CUSTOM in state.values and _speaks_for_itself(callback):
        callback.set_state(_custom_value(callback, state.values[_CUSTOM]))
    return tuple(stay)


def capture_all(callbacks: Iterable[keras.callbacks.Callback]) -> tuple[CallbackState, ...]:
    """Captures each callback but progress bars, which remember nothing that outlives an epoch."""
    return tuple(capture(callback) for callback in _without_bars(callbacks))


def restore_all(
    callbacks: Iterable[keras.callbacks.Callback], states: Sequence[CallbackState]
) -> tuple[str, ...]:
    """Restores each callback from the state at its position; nothing is changed if they do not fit.

    Returns:
        The attributes that stay as they are, as `restore` does.

    Raises:
        CheckpointMismatchError: the callbacks are others, more or fewer; the message says which.
        CheckpointCorruptError: a state holds what no callback of its class remembers.
    """
    chosen = _without_bars(callbacks)
    check_all(chosen, states)
    for callback, state in zip(chosen, states, strict=True):
        classes = class_for(callback)
        for name, value in _to_restore(callback, state).items():
            with _named(state.kind, name), contextlib.suppress(NotPutBackError):
                require_place(vars(callback).get(name), value, classes)
    pairs = zip(chosen, states, strict=True)
    return tuple(name for callback, state in pairs for name in restore(callback, state))


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
    known, settings = of_keras(type(callback))  # type: ignore[arg-type]
    classes = class_for(callback)
    for name, value in state.values.items():
        reason = _no_object(value, classes)
        if name == _CUSTOM:
            known |= {_CUSTOM}
        elif name in known and is_keras(type(callback)):  # a custom class may keep something else there
            reason = unfit(name, value, callback.model)
        if name not in known and (name in settings or _is_of_class(type(callback), name)):
            reason = "is no state of it"
        if reason is not None:
            raise CheckpointCorruptError(
                f"its {state.kind}.{name} {reason}. Take an older checkpoint or start afresh."
            )


def _no_object(value: Any, classes: Classes) -> str | None:
    """Returns in words why a value holds what no object can be, or None."""
    try:
        check_objects(value, classes)
    except ValueError as error:
        return f"makes no sense: {error}"
    return None


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


def _remembered(callback: keras.callbacks.Callback, *, asked: bool = True) -> list[str]:
    """Returns the attributes that are state, by the table or because Keras does not know them.

    Args:
        callback: any.
        asked: whether its `get_state` says what else it remembers, if it has one.
    """
    state, settings = of_keras(type(callback))  # type: ignore[arg-type]
    custom = asked and _speaks_for_itself(callback)
    return [name for name in vars(callback) if name in state or not (custom or name in settings)]


def _speaks_for_itself(callback: Any) -> bool:
    return callable(getattr(callback, "get_state", None)) and callable(getattr(callback, "set_state", None))


def _custom_state(callback: Any) -> Any:
    state = callback.get_state()
    try:
        return copied([state], look_into=attributes_of)[0]
    except Resource as error:
        raise TypeError(
            f"{type(callback).__name__}.get_state() returned a {error}, which cannot be stored. Return "
            "numbers, text, arrays, and lists and dicts of these."
        ) from error


def _copied(callback: keras.callbacks.Callback, value: Any) -> Any:
    if type(value) in (bool, int, float, str):
        return value
    foreign, arrays = _ModelVariables(callback.model), not is_keras(type(callback))
    return copied(value, copy_arrays=arrays, foreign=foreign, look_into=_look_into)


def _look_into(value: Any) -> Mapping[str, Any] | None:
    """Returns the attributes that an object is made of; of a callback inside another, what it remembers."""
    if isinstance(value, keras.callbacks.Callback):
        return {name: vars(value)[name] for name in _remembered(value, asked=False)}
    return attributes_of(value)


def _custom_value(callback: Any, value: Any) -> Any:
    """Returns what `set_state` gets: what `get_state` returned, made again."""
    if getattr(callback, "takes_copies", False) is True:
        return copied(value)
    return put_back(None, value, in_place=False, classes=class_for(callback))


def _can_be_copied(callback: keras.callbacks.Callback, value: Any) -> bool:
    try:
        copied(value, copy_arrays=False, foreign=_ModelVariables(callback.model), look_into=_look_into)
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
        metrics = getattr(self._model, "metrics_variables", ())
        found = [*self._model.variables, *metrics, *(optimizer.variables if optimizer is not None else ())]
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
