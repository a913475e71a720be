"""Settings of Keras's callbacks: how they were given, and what the training has made of them.

They belong to the user, who may resume with others, with other callbacks, or without some. A setting that the
training itself has changed, such as the patience that a subclass raises, is part of where it stands. It is
put back unless the user has changed it, too.
"""

from __future__ import annotations

import types
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras

from overlap_train._callbacks.state import is_number, settings_of, without_bars
from overlap_train._inspection.code import variables_of
from overlap_train.errors import CheckpointCorruptError

__all__ = ["Noted", "Settings"]

Noted = Sequence[Mapping[str, Any]]

_PLAIN = (bool, int, float, str, type(None))
# Where callbacks write, which may differ between two runs of one training.
_PLACES = frozenset(
    ("backup_dir", "directory", "embeddings_metadata", "filename", "filepath", "log_dir", "path", "root")
)


class Settings:
    """The settings of the callbacks of one `fit`, noted as it begins. Belongs to the training thread."""

    def __init__(self, callbacks: Iterable[keras.callbacks.Callback]) -> None:
        self.callbacks = without_bars(callbacks)
        self._began = list(map(_plain, self.callbacks))

    def noted(self) -> list[dict[str, Any]]:
        """Return the settings of each callback: as it was given, or what it was given and what it is now."""
        return [
            {n: v if _same(v, now.get(n, v)) else [v, now[n]] for n, v in began.items()}
            for began, now in zip(self._began, map(_plain, self.callbacks), strict=True)
        ]

    def known(self, kinds: Sequence[str], noted: Noted) -> list[int | None]:
        """Return the number in a checkpoint of each callback, None of one that is new.

        That is the first one of its class that is left, and of several the one with its settings.
        """
        found: dict[int, int] = {}
        for alike in (True, False):
            for here, callback in enumerate(self.callbacks):
                for number, kind in enumerate(kinds):
                    fits = (
                        kind == type(callback).__name__ and here not in found and number not in found.values()
                    )
                    if fits and (
                        not alike or _compared(self._began[here]) == _compared(_given(noted[number]))
                    ):
                        found[here] = number
        return [found.get(here) for here in range(len(self.callbacks))]

    def compared(self, noted: Noted, numbers: Sequence[int | None]) -> tuple[dict[str, str], dict[str, str]]:
        """Return with which settings callbacks were given to the other training, and now: texts by name.

        `numbers` are those of `known`.
        """
        before: dict[str, str] = {}
        now: dict[str, str] = {}
        count: Counter[str] = Counter()
        for callback, began, number in zip(self.callbacks, self._began, numbers, strict=True):
            kind = type(callback).__name__
            count[kind] += 1
            label = kind if count[kind] == 1 else f"{kind} ({count[kind]})"
            if number is not None:
                before |= {f"{label}.{n}": text for n, text in _compared(_given(noted[number])).items()}
                now |= {f"{label}.{n}": text for n, text in _compared(began).items()}
        return before, now

    def check(self, noted: Noted, numbers: Sequence[int | None]) -> None:
        """Raise CheckpointCorruptError unless settings of a checkpoint can be those of these callbacks."""
        for began, number in zip(self._began, numbers, strict=True):
            for name, value in noted[number].items() if number is not None else ():
                if isinstance(value, list):
                    fits = len(value) == 2 and name in began and all(_is_like(v, began[name]) for v in value)
                else:
                    fits = isinstance(value, (bool, str)) or is_number(value)
                if not fits:
                    raise CheckpointCorruptError(f"its setting {name!r:.80} of a callback is invalid")

    def put_back(self, noted: Noted, numbers: Sequence[int | None]) -> None:
        """Put settings back that the training had changed, where the user has left them as they were."""
        for callback, began, number in zip(self.callbacks, self._began, numbers, strict=True):
            for name, pair in noted[number].items() if number is not None else ():
                plain = isinstance(pair, list) and type(variables_of(callback).get(name)) in _PLAIN
                if plain and _same(began[name], pair[0]):
                    setattr(callback, name, pair[1])


def _plain(callback: keras.callbacks.Callback) -> dict[str, Any]:
    """Return the settings that are plain values, and of functions the names."""
    names, found = settings_of(type(callback)), variables_of(callback)  # type: ignore[arg-type]
    if isinstance(callback, keras.callbacks.CSVLogger):
        names |= {"sep"}  # as it calls its `separator`
    given = {name: found[name] for name in sorted(names & found.keys())}
    plain = {name: value for name, value in given.items() if type(value) in _PLAIN}
    if isinstance(plain.get("min_delta"), (int, float)):
        plain["min_delta"] = abs(plain["min_delta"])  # whose sign Keras changes on first use
    functions = {n: f"function {f.__name__}" for n, f in given.items() if isinstance(f, types.FunctionType)}
    return plain | functions


def _given(noted: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value[0] if isinstance(value, list) else value for name, value in noted.items()}


def _compared(given: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings that tell one callback from another, as messages show them."""
    shown = {name: value for name, value in given.items() if name not in _PLACES}
    return {n: f"{v:.7g}" if isinstance(v, float) else f"{v!s:.100}" for n, v in shown.items()}


def _same(first: Any, second: Any) -> bool:
    return type(first) is type(second) and (first == second or first != first)


def _is_like(value: Any, other: Any) -> bool:
    """Whether a value may stand where another one does: a number where one may stand, or a text."""
    if isinstance(other, (bool, str)):
        return type(value) is type(other)
    return not isinstance(value, bool) and is_number(value)
