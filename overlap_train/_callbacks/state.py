"""What callbacks remember from epoch to epoch, taken for a checkpoint and put back for a resume.

For Keras's own callbacks a table names it: their patience, best values and counters. Their settings are left
alone, so that a resumed run obeys the new ones, and because Keras changes one of them (`min_delta` turns
negative on first use). Of the attributes that a user's class adds, the plain ones are taken (see
`_callbacks.values`).

A user's callback may define what it remembers: `get_state()` returns it and `set_state(state)` takes it back,
in place of all attributes that Keras's classes did not add. The names follow Keras's `get_weights` and
`set_weights`, Keras Tuner, and the iterators of Grain.

Settings of Keras's callbacks belong to the user, who may resume with others, with other callbacks, or without
some. A setting that the training itself has changed, such as the patience that a subclass raises, is named as
not stored.

Use all of it on the training thread, and restore after `on_train_begin`, which resets much.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import keras

from overlap_train._callbacks.restoring import Restorer
from overlap_train._callbacks.values import (
    GET_STATE,
    Copier,
    Foreign,
    NotPlainError,
    ObjectValue,
    has_get_state,
    is_code,
    model_variables,
    parts_of,
)
from overlap_train._inspection.attributes import variables_of
from overlap_train._inspection.code import attributes_set_by

# Attributes of Keras's callbacks that are state; `append` see `rewind`.
_STATE = frozenset(
    (
        *("_batches_seen_since_last_saving", "_current_epoch", "_ema_weights_in_model", "_global_test_batch"),
        *("_global_train_batch", "_last_batch_seen", "_should_write_train_graph", "_total_batches_seen"),
        *("append", "best", "best_epoch", "best_weights", "cooldown_counter", "epoch", "history", "keys"),
        *("stopped_epoch", "wait"),
    )
)
# What Keras's callbacks set on the model and its optimizer.
_OF_THE_MODEL = frozenset({"_initial_epoch", "learning_rate", "stop_training"})


@cache
def _of_keras(kind: type) -> frozenset[str]:
    """Return the attributes that Keras's classes among the bases of `kind` add."""
    return attributes_set_by(filter(is_keras, kind.__mro__)) - _OF_THE_MODEL | settings_of(kind)


@cache
def settings_of(kind: type) -> frozenset[str]:
    """Return the arguments of the constructors of Keras's classes among the bases of `kind`."""
    constructors = [vars(base).get("__init__") for base in filter(is_keras, kind.__mro__)]
    names = {name for each in constructors if each is not None for name in inspect.getfullargspec(each).args}
    return frozenset(names - {"self"})


def is_keras(kind: type) -> bool:
    """Whether a class is one of Keras's own."""
    return kind.__module__.split(".")[0] == "keras"


def capture_all(callbacks: Iterable[keras.callbacks.Callback]) -> tuple[ObjectValue, ...]:
    """Copy what each callback remembers, but for progress bars, whose memory ends with an epoch.

    Shared is what is immutable, and what Keras's own callbacks replace and never change. A `get_state` that
    returned what is not plain is a TypeError.
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
    """Restore callbacks from checked states; return which attributes stay as they are, with the reason."""
    callbacks = [callback for callback, _ in pairs]
    restorer = Restorer(_foreign(callbacks), parts=_parts, apart=callbacks)
    for callback, state in pairs:
        restorer.attributes(callback, state.attributes, state.kind)
    return tuple(restorer.stay)


class Unstored:
    """Names what callbacks remember and no checkpoint holds, each attribute once.

    That is what is not plain, and functions and settings of Keras's callbacks that have taken the place of
    others since the fit began.
    """

    def __init__(self) -> None:
        self._reported: set[str] = set()
        self._initial: list[Mapping[str, Any]] = []

    def begin(self, callbacks: Iterable[keras.callbacks.Callback]) -> None:
        """Note how the callbacks stand behind `on_train_begin`."""
        self._initial = [_functions(each) | _texts(each) for each in without_bars(callbacks)]

    def names(
        self, states: Sequence[ObjectValue], callbacks: Iterable[keras.callbacks.Callback] = ()
    ) -> list[str]:
        """Return the names that have not been returned yet, of states and of the callbacks they are of."""
        names = [f"{state.kind}.{name}" for state in states for name in state.lost]
        triples = zip(without_bars(callbacks), states, self._initial, strict=False)
        for callback, state, initial in triples:
            present = _functions(callback) | _texts(callback)
            names += [f"{state.kind}.{name}" for name in initial if present.get(name) != initial[name]]
        new = [name for name in dict.fromkeys(names) if name not in self._reported]
        self._reported.update(new)
        return new


def _functions(callback: keras.callbacks.Callback) -> dict[str, Any]:
    return {name: value for name, value in variables_of(callback).items() if is_code(value)}


def without_bars(callbacks: Iterable[keras.callbacks.Callback]) -> list[keras.callbacks.Callback]:
    """Return all but progress bars."""
    return [callback for callback in callbacks if not isinstance(callback, keras.callbacks.ProgbarLogger)]


def _parts(value: Any) -> Mapping[str, Any] | None:
    return _remembered(value) if isinstance(value, keras.callbacks.Callback) else parts_of(value)


def _remembered(callback: keras.callbacks.Callback) -> dict[str, Any]:
    """Return the attributes that are state, by the table or because Keras does not know them."""
    of_keras, is_custom = _of_keras(type(callback)), has_get_state(callback)  # type: ignore[arg-type]
    attributes = variables_of(callback).items()
    parts = {n: part for n, part in attributes if (n in _STATE if n in of_keras else not is_custom)}
    return parts | {GET_STATE: None} if is_custom else parts


_PLAIN = (bool, int, float, str, type(None))
# Where callbacks write, which may differ between two runs of one training; `append` see `rewind`.
_PLACES = frozenset(
    (
        *("append", "backup_dir", "directory", "embeddings_metadata"),
        *("filename", "filepath", "log_dir", "path", "root"),
    )
)


class Settings:
    """The settings of the callbacks of one `fit`, noted as it begins; belongs to the training thread.

    They tell two callbacks of a class apart.
    """

    def __init__(self, callbacks: Iterable[keras.callbacks.Callback]) -> None:
        self.callbacks = without_bars(callbacks)
        self.texts = list(map(_texts, self.callbacks))

    def match(self, kinds: Sequence[str], texts: Sequence[Mapping[str, str]]) -> list[int | None]:
        """Return the number in a checkpoint of each callback: of its class, and best with its settings.

        It is None for a new one.
        """
        matches: dict[int, int] = {}
        for with_settings in (True, False):
            for index, callback in enumerate(self.callbacks):
                for number, kind in enumerate(kinds):
                    if index in matches or number in matches.values() or kind != type(callback).__name__:
                        continue
                    if not with_settings or self.texts[index] == texts[number]:
                        matches[index] = number
        return [matches.get(index) for index in range(len(self.callbacks))]


def _texts(callback: keras.callbacks.Callback) -> dict[str, str]:
    """Return the settings that tell a callback from another: plain values and the names of functions."""
    settings: dict[str, str] = {}
    attributes = variables_of(callback)
    for name in sorted((settings_of(type(callback)) & attributes.keys()) - _PLACES):  # type: ignore[arg-type]
        value = attributes[name]
        if name == "min_delta" and isinstance(value, (int, float)):
            value = abs(value)  # Keras changes its sign on first use
        if isinstance(value, types.FunctionType):
            settings[name] = f"function {value.__name__}"
        elif type(value) in _PLAIN:
            settings[name] = f"{value!s:.100}"
    return settings
