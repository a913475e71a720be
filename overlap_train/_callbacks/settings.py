"""Settings of Keras's callbacks that a training changes, such as the patience that a subclass raises.

The settings with which callbacks are built belong to the user, who may resume with others. Those that are
others than as `fit` began are part of where a training stands. They are put back unless the user has changed
the setting, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import keras

from overlap_train._callbacks.kinds import is_number, settings_of
from overlap_train._callbacks.state import without_bars
from overlap_train._inspection.lookup import variables_of
from overlap_train.errors import CheckpointCorruptError

__all__ = ["Settings"]

_PLAIN = (bool, int, float, str, type(None))


class Settings:
    """The settings of the callbacks of one `fit`, by their places. Belongs to the training thread."""

    def __init__(self, callbacks: Iterable[keras.callbacks.Callback]) -> None:
        """Notes the settings as `fit` begins."""
        self._callbacks = without_bars(callbacks)
        self._began = list(map(_plain, self._callbacks))

    def changed(self) -> dict[str, dict[str, list[Any]]]:
        """Returns those that are others than at the beginning, each as it was and as it is."""
        found = {}
        for number, (callback, began) in enumerate(zip(self._callbacks, self._began, strict=True)):
            pairs = {name: [began.get(name), value] for name, value in _plain(callback).items()}
            others = {name: pair for name, pair in pairs.items() if name in began and not _same(*pair)}
            if others:
                found[str(number)] = others
        return found

    def check(self, described: Mapping[str, Any]) -> None:
        """Makes sure that what `changed` has returned, perhaps, is of these callbacks.

        Raises:
            CheckpointCorruptError: no training has changed a setting so.
        """
        began = {str(number): settings for number, settings in enumerate(self._began)}
        for number, pairs in described.items():
            if not isinstance(pairs, dict) or number not in began:
                raise CheckpointCorruptError(f"its settings of callback {number!r:.80} are invalid")
            for name, pair in pairs.items():
                fits = isinstance(pair, list) and len(pair) == 2 and name in began[number]
                if not fits or not all(_is_like(each, began[number][name]) for each in pair):
                    raise CheckpointCorruptError(f"its setting {name!r:.80} of a callback is invalid")

    def put_back(self, described: Mapping[str, Any]) -> None:
        """Puts settings back where the user has left them as they were."""
        for number, pairs in described.items():
            callback = self._callbacks[int(number)]
            for name, (before, now) in pairs.items():
                if _same(self._began[int(number)][name], before):
                    setattr(callback, name, now)


def _plain(callback: keras.callbacks.Callback) -> dict[str, Any]:
    names, found = settings_of(type(callback)), variables_of(callback)  # type: ignore[arg-type]
    plain = {name: found[name] for name in names & found.keys() if type(found[name]) in _PLAIN}
    if isinstance(plain.get("min_delta"), (int, float)):
        plain["min_delta"] = abs(plain["min_delta"])  # whose sign Keras changes on first use
    return plain


def _same(first: Any, second: Any) -> bool:
    return type(first) is type(second) and (first == second or first != first)


def _is_like(value: Any, other: Any) -> bool:
    """Whether a value may stand where another one does: a number where one may stand, or a text."""
    if isinstance(other, (bool, str)):
        return type(value) is type(other)
    return not isinstance(value, bool) and is_number(value)
