"""Settings of Keras's callbacks: as the user gave them, and as the training has changed them.

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

Records = Sequence[Mapping[str, Any]]
"""Of each callback: its settings by name, those that the training has changed as [before, after]."""

_PLAIN = (bool, int, float, str, type(None))
# Where callbacks write, which may differ between two runs of one training.
_PLACES = frozenset(
    ("backup_dir", "directory", "embeddings_metadata", "filename", "filepath", "log_dir", "path", "root")
)


class Settings:
    """The settings of the callbacks of one `fit`, noted as it begins. Belongs to the training thread.

    `numbers`, an argument of its methods, says for each callback which one in the checkpoint it is; None for
    a new one.
    """

    def __init__(self, callbacks: Iterable[keras.callbacks.Callback]) -> None:
        self.callbacks = without_bars(callbacks)
        self._initial = list(map(_plain, self.callbacks))

    def records(self) -> list[dict[str, Any]]:
        """Return the settings of each callback, for a checkpoint."""
        return [
            {n: v if _same(v, now.get(n, v)) else [v, now[n]] for n, v in initial.items()}
            for initial, now in zip(self._initial, map(_plain, self.callbacks), strict=True)
        ]

    def match(self, kinds: Sequence[str], records: Records) -> list[int | None]:
        """Return the number in a checkpoint of each callback, None for a new one.

        That is the first one of its class that is left, and of several the one with its settings.
        """
        matches: dict[int, int] = {}
        for with_settings in (True, False):
            for index, (callback, initial) in enumerate(zip(self.callbacks, self._initial, strict=True)):
                for number, kind in enumerate(kinds):
                    if index in matches or number in matches.values() or kind != type(callback).__name__:
                        continue
                    if not with_settings or _comparable(initial) == _comparable(_before(records[number])):
                        matches[index] = number
        return [matches.get(index) for index in range(len(self.callbacks))]

    def compared(
        self, records: Records, numbers: Sequence[int | None]
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Return the settings that callbacks were given in the other training, and now: texts by name."""
        before: dict[str, str] = {}
        now: dict[str, str] = {}
        count: Counter[str] = Counter()
        for callback, initial, number in zip(self.callbacks, self._initial, numbers, strict=True):
            kind = type(callback).__name__
            count[kind] += 1
            label = kind if count[kind] == 1 else f"{kind} ({count[kind]})"
            if number is not None:
                texts = _comparable(_before(records[number]))
                before |= {f"{label}.{name}": text for name, text in texts.items()}
                now |= {f"{label}.{name}": text for name, text in _comparable(initial).items()}
        return before, now

    def check(self, records: Records, numbers: Sequence[int | None]) -> None:
        """Raise CheckpointCorruptError unless settings of a checkpoint can be those of these callbacks."""
        for initial, number in zip(self._initial, numbers, strict=True):
            for name, value in records[number].items() if number is not None else ():
                if isinstance(value, list):
                    is_change = len(value) == 2 and name in initial
                    fits = is_change and all(_is_like(each, initial[name]) for each in value)
                else:
                    fits = isinstance(value, (bool, str)) or is_number(value)
                if not fits:
                    raise CheckpointCorruptError(f"its setting {name!r:.80} of a callback is invalid")

    def put_back(self, records: Records, numbers: Sequence[int | None]) -> None:
        """Put settings back that the training had changed, where the user has left them as they were."""
        for callback, initial, number in zip(self.callbacks, self._initial, numbers, strict=True):
            for name, pair in records[number].items() if number is not None else ():
                is_plain = isinstance(pair, list) and type(variables_of(callback).get(name)) in _PLAIN
                if is_plain and _same(initial[name], pair[0]):
                    setattr(callback, name, pair[1])


def _plain(callback: keras.callbacks.Callback) -> dict[str, Any]:
    """Return the settings that are plain values, and the names of those that are functions."""
    names, attributes = settings_of(type(callback)), variables_of(callback)  # type: ignore[arg-type]
    if isinstance(callback, keras.callbacks.CSVLogger):
        names |= {"sep"}  # as it calls its `separator`
    settings: dict[str, Any] = {}
    for name in sorted(names & attributes.keys()):
        value = attributes[name]
        if isinstance(value, types.FunctionType):
            settings[name] = f"function {value.__name__}"
        elif type(value) in _PLAIN:
            # Keras changes the sign of this one on first use.
            settings[name] = abs(value) if name == "min_delta" and isinstance(value, (int, float)) else value
    return settings


def _before(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value[0] if isinstance(value, list) else value for name, value in record.items()}


def _comparable(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings that tell one callback from another, as messages show them."""
    items = [(name, value) for name, value in settings.items() if name not in _PLACES]
    return {n: f"{v:.7g}" if isinstance(v, float) else f"{v!s:.100}" for n, v in items}


def _same(first: Any, second: Any) -> bool:
    return type(first) is type(second) and (first == second or first != first)


def _is_like(value: Any, other: Any) -> bool:
    """Whether a value may stand where another one does: a number where one may stand, or a text."""
    if isinstance(other, (bool, str)):
        return type(value) is type(other)
    return not isinstance(value, bool) and is_number(value)
