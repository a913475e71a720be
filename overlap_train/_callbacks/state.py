"""What callbacks remember from epoch to epoch, taken for a checkpoint and put back for a resume.

Of Keras's own callbacks that is what the table below names: their patience, best values and counters. Their
settings are left alone, so that a resumed run obeys the new ones, and because Keras changes one of them
(`min_delta` turns negative on first use). Of the attributes that a user's class adds, each that can be
copied is (see `values`); the others stay as they are in the live callback and are listed as left out. What
two attributes hold in common, of one callback or of several, they hold in common again (see `placing`).

A user's callback may say itself what it remembers: `get_state()` returns it and `set_state(state)` takes it
back. The names follow Keras's `get_weights` and `set_weights`, Keras Tuner, and the iterators of Grain. They
then stand for all attributes that Keras's classes did not add.

Use all of it on the training thread, and restore after `on_train_begin`, which resets much.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import keras

from overlap_train._callbacks.kinds import is_keras, of_keras, unfit
from overlap_train._copies.kept import KeptState, kept
from overlap_train._copies.model_variables import ModelVariables
from overlap_train._copies.objects import (
    NotPutBackError,
    attributes_of,
    check_objects,
    class_for,
    keeps,
    set_attributes,
)
from overlap_train._copies.placing import Placing, members_of
from overlap_train._copies.values import Copies, Resource, copied, standing_in
from overlap_train._inspection.lookup import variables_of
from overlap_train.errors import CheckpointCorruptError, CheckpointMismatchError

__all__ = ["capture", "capture_all", "check_all", "restore", "restore_all", "without_bars"]

_CUSTOM = "get_state()"


def capture(callback: keras.callbacks.Callback, copies: Copies | None = None) -> KeptState:
    """Copies what a callback remembers.

    Lists, dicts and the arrays of a user's class are copied; what is immutable, the arrays of Keras's own
    callbacks, which replace and never change them, and the buffers of variables are shared.

    Args:
        callback: any.
        copies: of what other callbacks hold too.

    Raises:
        TypeError: `get_state` returned what cannot be copied.
    """
    copies = copies or Copies()
    state = _kept(callback, copies, copy_arrays=not is_keras(type(callback)))
    if not _speaks_for_itself(callback):
        return state
    return replace(state, values={**state.values, _CUSTOM: _custom_state(callback, copies)})


def restore(callback: keras.callbacks.Callback, state: KeptState) -> tuple[str, ...]:
    """Puts back what a callback remembered; a state can be put back any number of times.

    What cannot be copied now is left as it is; for the rest see `placing`.

    Returns:
        The attributes whose objects could not be put back, each with the reason; they stay as they are.

    Raises:
        CheckpointMismatchError: the callback is of another class, or a variable of it has changed its shape.
    """
    if type(callback).__name__ != state.kind:
        raise CheckpointMismatchError(_other_class(callback, state))
    return _restored([(callback, state)])


def capture_all(callbacks: Iterable[keras.callbacks.Callback]) -> tuple[KeptState, ...]:
    """Captures each callback but progress bars, which remember nothing that outlives an epoch."""
    copies = Copies()
    return tuple(capture(callback, copies) for callback in without_bars(callbacks))


def restore_all(
    callbacks: Iterable[keras.callbacks.Callback], states: Sequence[KeptState]
) -> tuple[str, ...]:
    """Restores each callback from the state of its class at its position, or none if one does not fit.

    Returns what `restore` does.

    Raises:
        CheckpointMismatchError: a variable of a callback has changed its shape.
        CheckpointCorruptError: a state holds what no callback of its class remembers.
    """
    chosen = list(callbacks)
    check_all(chosen, states)
    return _restored([*zip(chosen, states, strict=True)])


def _restored(pairs: Sequence[tuple[keras.callbacks.Callback, KeptState]]) -> tuple[str, ...]:
    """Restores callbacks, after all is known to fit; returns what stays as it is."""
    placing, stay = Placing(tells_sharing=any(state.tells_sharing for _, state in pairs)), []
    work = [(callback, state, _to_restore(callback, state), class_for(callback)) for callback, state in pairs]
    for callback, _, values, classes in work:
        placing.turn_to(classes)
        for name, value in values.items():
            placing.offer(variables_of(callback).get(name), value)
    placing.settle()
    for callback, state, values, classes in work:
        placing.turn_to(classes)
        for name in list(values):
            try:
                placing.require(values[name])
            except NotPutBackError as error:
                del values[name]
                stay.append(f"{state.kind}.{name} ({error})")
            except ValueError as error:
                raise _cannot_be_restored(state, name, error) from error
        _require_custom(callback, state, placing)
    for callback, state, values, classes in work:
        placing.turn_to(classes, copy_arrays=not is_keras(type(callback)))
        set_attributes(callback, {name: placing.put(value) for name, value in values.items()})
        if _CUSTOM in state.values and _speaks_for_itself(callback):
            value = state.values[_CUSTOM]
            callback.set_state(copied(value) if _takes_copies(callback) else placing.put(value))
    return tuple(stay)


def check_all(callbacks: Iterable[keras.callbacks.Callback], states: Sequence[KeptState]) -> None:
    """Makes sure that each callback can be restored from the state at its position, and changes nothing.

    Raises:
        CheckpointCorruptError: a state holds what no callback of its class remembers.
    """
    for callback, state in zip(callbacks, states, strict=True):
        _check_values(callback, state)


def _check_values(callback: keras.callbacks.Callback, state: KeptState) -> None:
    """Refuses attributes that `capture` takes from no callback of this class, and values of another type."""
    known, settings = of_keras(type(callback))  # type: ignore[arg-type]
    objects_fit = _object_check(callback)
    for name, value in state.values.items():
        reason = objects_fit(value)
        if name == _CUSTOM:
            known |= {_CUSTOM}
        elif name in known and is_keras(type(callback)):  # a custom class may keep something else there
            reason = unfit(name, value, callback.model)
        if name not in known and (name in settings or not keeps(type(callback), name)):
            reason = "is no state of it"
        if reason is not None:
            raise CheckpointCorruptError(
                f"its {state.kind}.{name} {reason}. Take an older checkpoint or start afresh."
            )


def _object_check(callback: keras.callbacks.Callback) -> Callable[[Any], str | None]:
    """Returns what says in words why a value holds what no object can be; None if it does not."""
    classes, seen = class_for(callback), set[int]()
    members = members_of(classes)

    def reason(value: Any) -> str | None:
        try:
            check_objects(value, classes, seen)
            members.check(value)
        except ValueError as error:
            return f"is invalid: {error}"
        return None

    return reason


def _to_restore(callback: keras.callbacks.Callback, state: KeptState) -> dict[str, Any]:
    """Returns the attributes that take a value back: what cannot be copied now stays as it is."""
    live, now = variables_of(callback), _kept(callback, Copies(), copy_arrays=False).values
    return {n: v for n, v in state.values.items() if n != _CUSTOM and (n not in live or n in now)}


def without_bars(callbacks: Iterable[keras.callbacks.Callback]) -> list[keras.callbacks.Callback]:
    """Returns all but progress bars."""
    return [callback for callback in callbacks if not isinstance(callback, keras.callbacks.ProgbarLogger)]


def _remembered(callback: keras.callbacks.Callback, *, asked: bool = True) -> list[str]:
    """Returns the attributes that are state, by the table or because Keras does not know them.

    Args:
        callback: any.
        asked: whether its `get_state` says what else it remembers, if it has one.
    """
    state, settings = of_keras(type(callback))  # type: ignore[arg-type]
    custom = asked and _speaks_for_itself(callback)
    return [name for name in variables_of(callback) if name in state or not (custom or name in settings)]


def _speaks_for_itself(callback: Any) -> bool:
    return callable(getattr(callback, "get_state", None)) and callable(getattr(callback, "set_state", None))


def _custom_state(callback: Any, copies: Copies) -> Any:
    state = callback.get_state()
    try:
        done = copied([state], look_into=attributes_of, copies=copies)[0]
    except Resource as error:
        raise TypeError(_not_stored(callback, str(error))) from error
    if not _takes_copies(callback) and (part := standing_in(done)) is not None:
        raise TypeError(_not_stored(callback, part.kind.split(":")[-1]))
    return done


def _not_stored(callback: Any, what: str) -> str:
    return (
        f"{type(callback).__name__}.get_state() returned a {what}, which cannot be stored. Return "
        "numbers, text, arrays, and lists and dicts of these."
    )


def _takes_copies(callback: Any) -> bool:
    return getattr(callback, "takes_copies", False) is True


def _kept(callback: keras.callbacks.Callback, copies: Copies, *, copy_arrays: bool) -> KeptState:
    foreign = ModelVariables(callback.model)
    names = _remembered(callback)
    return kept(callback, names, copies, look_into=_look_into, foreign=foreign, copy_arrays=copy_arrays)


def _look_into(value: Any) -> Mapping[str, Any] | None:
    """Returns the attributes that an object is made of; of a callback inside another, what it remembers."""
    if isinstance(value, keras.callbacks.Callback):
        return {name: variables_of(value)[name] for name in _remembered(value, asked=False)}
    return attributes_of(value)


def _require_custom(callback: Any, state: KeptState, placing: Placing) -> None:
    """Makes sure that what `get_state` returned can be made again, if `set_state` is to get it."""
    if _CUSTOM not in state.values or not _speaks_for_itself(callback) or _takes_copies(callback):
        return
    try:
        placing.require(state.values[_CUSTOM], variables=False)
    except (ValueError, NotPutBackError) as error:
        raise _cannot_be_restored(state, _CUSTOM, error) from error


def _cannot_be_restored(state: KeptState, name: str, error: Exception) -> CheckpointMismatchError:
    return CheckpointMismatchError(
        f"{state.kind}.{name} cannot be restored: {error}. Build the callback as in the run that wrote the "
        "checkpoint, or start afresh."
    )


def _other_class(callback: keras.callbacks.Callback, state: KeptState) -> str:
    return (
        f"The state is that of a {state.kind}, and the callback is a {type(callback).__name__}. Pass the "
        "same callbacks in the same order, or start afresh."
    )
