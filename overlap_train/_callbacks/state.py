"""What callbacks remember from epoch to epoch, taken for a checkpoint and put back for a resume.

Of Keras's own callbacks that is what the table of `kinds` names: their patience, best values and counters.
Their settings are left alone, so that a resumed run obeys the new ones, and because Keras changes one of them
(`min_delta` turns negative on first use). Of the attributes that a user's class adds, each that is plain is
(see `_copies.values`).

A user's callback may say itself what it remembers: `get_state()` returns it and `set_state(state)` takes it
back. The names follow Keras's `get_weights` and `set_weights`, Keras Tuner, and the iterators of Grain. They
then stand for all attributes that Keras's classes did not add.

Use all of it on the training thread, and restore after `on_train_begin`, which resets much.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras

from overlap_train._callbacks.kinds import is_keras, of_keras, unfit
from overlap_train._copies.restoring import Restorer
from overlap_train._copies.values import (
    SPOKEN,
    Copier,
    Foreign,
    NotPlainError,
    ObjectValue,
    is_code,
    keeps,
    model_variables,
    parts_of,
    places,
    speaks,
)
from overlap_train._inspection.lookup import variables_of
from overlap_train.errors import CheckpointCorruptError

__all__ = ["Unstored", "capture_all", "check_all", "restore_all", "without_bars"]


def capture_all(callbacks: Iterable[keras.callbacks.Callback]) -> tuple[ObjectValue, ...]:
    """Copy what each callback remembers, but for progress bars, whose memory ends with an epoch.

    Shared are what is immutable, the buffers of variables, and the arrays of Keras's own callbacks, which
    replace and never change them. A `get_state` that returned what is not plain is a TypeError.
    """
    listed = without_bars(callbacks)
    copier = Copier(_foreign(listed), parts=_parts, apart=listed)
    return tuple(_captured(callback, copier) for callback in listed)


def _captured(callback: keras.callbacks.Callback, copier: Copier) -> ObjectValue:
    copier.copy_arrays = not is_keras(type(callback))
    try:
        return copier.object(callback, _remembered(callback))
    except NotPlainError as error:
        raise TypeError(
            f"{type(callback).__name__}.get_state() returned a {error}, which cannot be stored. Return "
            "numbers, text, arrays, and lists and dicts of these."
        ) from error


def _foreign(callbacks: Iterable[keras.callbacks.Callback]) -> Foreign:
    model = next((each.model for each in callbacks if each.model is not None), None)
    return functools.partial(model_variables, model)


def restore_all(
    callbacks: Iterable[keras.callbacks.Callback], states: Sequence[ObjectValue]
) -> tuple[str, ...]:
    """Restore each callback from the state at its position, or none if one does not fit.

    Returns the attributes that could not be put back, each with the reason; they stay as they are.
    """
    listed = list(callbacks)
    check_all(listed, states)
    restorer = Restorer(_foreign(listed), parts=_parts, apart=listed)
    for callback, state in zip(listed, states, strict=True):
        restorer.attributes(callback, state.attributes, state.kind)
    return tuple(restorer.stay)


def check_all(callbacks: Iterable[keras.callbacks.Callback], states: Sequence[ObjectValue]) -> None:
    """Raise CheckpointCorruptError unless each callback can be restored from the state at its position."""
    for callback, state in zip(callbacks, states, strict=True):
        _check(callback, state)


def _check(callback: keras.callbacks.Callback, state: ObjectValue) -> None:
    """Refuse attributes that are taken from no callback of this class, and values of another type."""
    known, settings = of_keras(type(callback))  # type: ignore[arg-type]
    for name, value in state.attributes.items():
        reason = None
        if name in known and is_keras(type(callback)):  # a custom class may keep something else there
            reason = unfit(name, value, callback.model)
        if name not in {*known, SPOKEN} and (name in settings or not keeps(type(callback), name)):
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
        self._named: set[str] = set()
        self._began: list[tuple[Mapping[str, int], Mapping[str, Any]]] = []

    def begin(self, callbacks: Iterable[keras.callbacks.Callback], states: Sequence[ObjectValue]) -> None:
        """Note how the callbacks stand behind `on_train_begin`."""
        self._began = [
            (places(state, state.kind), {n: v for n, v in variables_of(callback).items() if is_code(v)})
            for callback, state in zip(without_bars(callbacks), states, strict=True)
        ]

    def names(
        self, states: Sequence[ObjectValue], callbacks: Iterable[keras.callbacks.Callback] = ()
    ) -> list[str]:
        """Return the names that have not been returned yet, of states and of the callbacks they are of."""
        found = [f"{state.kind}.{name}" for state in states for name in state.lost]
        for callback, state, (there, code) in zip(without_bars(callbacks), states, self._began, strict=False):
            now, here = variables_of(callback), places(state, state.kind)
            found += [label for label, count in here.items() if count > there.get(label, 0)]
            found += [f"{state.kind}.{n}" for n, v in code.items() if is_code(now.get(n)) and now[n] != v]
        new = [name for name in dict.fromkeys(found) if name not in self._named]
        self._named.update(new)
        return new


def without_bars(callbacks: Iterable[keras.callbacks.Callback]) -> list[keras.callbacks.Callback]:
    """Return all but progress bars."""
    return [callback for callback in callbacks if not isinstance(callback, keras.callbacks.ProgbarLogger)]


def _parts(value: Any) -> Mapping[str, Any] | None:
    return _remembered(value) if isinstance(value, keras.callbacks.Callback) else parts_of(value)


def _remembered(callback: keras.callbacks.Callback) -> dict[str, Any]:
    """Return the attributes that are state, by the table or because Keras does not know them."""
    state, settings = of_keras(type(callback))  # type: ignore[arg-type]
    live, custom = variables_of(callback), speaks(callback)
    found = {name: part for name, part in live.items() if name in state or not (custom or name in settings)}
    return found | {SPOKEN: None} if custom else found
