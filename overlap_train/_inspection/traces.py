"""What has been traced of a model: kept as long as the model, dropped when Keras would trace anew (contract
C11).

Traces and the loops built around them hold no data and no trainer, so that they serve every `fit`, `evaluate`
and `Trainer` of the model. Keras's own train and test functions, which `compile` takes away and
`make_train_function(force=True)` makes anew, say how long a trace is good for.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar

import keras

__all__ = ["Same", "Traces", "function_key"]

T = TypeVar("T")

_ATTRIBUTE = "_overlap_train_traces"


@dataclass(frozen=True, eq=False)
class Same:
    """Equal to what holds the same object, which stays alive, so that no other one has its `id`."""

    held: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.held is self.held

    def __hash__(self) -> int:
        return id(self.held)


class Traces:
    """The traces of one model. Belongs to the thread that trains it."""

    def __init__(self) -> None:
        self._tokens: dict[str, Any] = {}
        self._kept: dict[str, dict[Hashable, Any]] = {}

    @classmethod
    def of(cls, model: keras.Model) -> Traces:
        """Returns the traces of a model."""
        # Past Keras's tracking of attributes, and past what it saves.
        found: Traces = vars(model).setdefault(_ATTRIBUTE, cls())
        return found

    def get(self, kind: str, token: Any, key: Hashable, build: Callable[[], T]) -> T:
        """Returns what is kept under a key, or what `build` makes.

        Args:
            kind: "train" or "test".
            token: Keras's function of that kind; with another one, all that was kept is dropped.
            key: what the trace depends on besides.
            build: makes it.
        """
        self._renew(kind, token)
        kept = self._kept[kind]
        if key not in kept:
            kept[key] = build()
        result: T = kept[key]
        return result

    def has(self, kind: str, token: Any, key: Hashable) -> bool:
        """Whether something is kept under a key."""
        return self._tokens.get(kind) is token and key in self._kept.get(kind, {})

    def _renew(self, kind: str, token: Any) -> None:
        if kind not in self._kept or self._tokens.get(kind) is not token:
            self._tokens[kind], self._kept[kind] = token, {}

    def __deepcopy__(self, memo: Any) -> Traces:
        return Traces()

    def __copy__(self) -> Traces:
        return Traces()

    def __reduce__(self) -> tuple[Any, ...]:
        return Traces, ()


def function_key(function: Any) -> Hashable:
    """Returns what tells a function from others: a bound method is told by its object, too."""
    owner = getattr(function, "__self__", None)
    if owner is None:
        return Same(function)
    return Same(getattr(function, "__func__", function)), Same(owner)
