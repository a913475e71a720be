"""What has been traced of a model: kept as long as the model, dropped when Keras would trace anew (C11).

Traces and the loops built around them hold no data and no trainer, so that they serve every `fit`, `evaluate`
and `Trainer` of the model. Keras's own train and test functions, which `compile` takes away and
`make_train_function(force=True)` makes anew, say how long a trace is good for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar

import keras
import tensorflow as tf

from overlap_train._inspection.traced import has_any_rows

__all__ = ["Same", "Traces", "function_key"]

T = TypeVar("T")

_SCALAR = tf.TensorShape([])
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

    @classmethod
    def set_aside(cls, model: keras.Model) -> contextlib.ExitStack:
        """Forgets behind the block what has been traced in it, Keras's functions included."""
        names = (_ATTRIBUTE, "train_function", "test_function")
        before = {name: vars(model)[name] for name in names if name in vars(model)}
        object.__setattr__(model, _ATTRIBUTE, cls.of(model)._copied())
        undo = contextlib.ExitStack()

        @undo.callback
        def put_back() -> None:
            for name in names:
                if name in before:
                    object.__setattr__(model, name, before[name])
                else:
                    vars(model).pop(name, None)

        return undo

    def _copied(self) -> Traces:
        copied = Traces()
        copied._tokens = dict(self._tokens)
        copied._kept = {kind: dict(kept) for kind, kept in self._kept.items()}
        return copied

    def get(self, kind: str, token: Any, key: Hashable, build: Callable[[], T]) -> T:
        """Returns what is kept under a key, or what `build` makes."""
        self._renew(kind, token)
        kept = self._kept[kind]
        if key not in kept:
            kept[key] = build()
        result: T = kept[key]
        return result

    def get_step(
        self,
        kind: str,
        token: Any,
        key: Hashable,
        spec: Any,
        rows: int | None,
        build: Callable[[Any, int | None], T],
    ) -> T:
        """Returns what is kept of a step for batches of a kind, or what `build` makes of it.

        As under `tf.function(reduce_retracing=True)`, batches of a known size are taken by what was traced
        for any size, and what is traced behind batches of another size is traced for any.

        Args:
            kind: as of `get`.
            token: as of `get`.
            key: of the step.
            spec: of a batch.
            rows: of the first batch, where Keras traces a step for as many and again for others; or None.
            build: gets a spec, and these rows where it has none: see `TracedByRows`.
        """
        known: list[tuple[Any, T]] = self.get(kind, token, (key, "for"), list)
        fitting = [(other, value) for other, value in known if _is_subtype(spec, other)]
        for other, value in fitting:
            if all(_is_subtype(other, another) for another, _ in fitting):
                return value
        for other, _ in known:
            spec = _relaxed(spec, other)
        first = self.get(kind, token, ("first_rows",), lambda: rows) if rows else None
        known.append((spec, build(spec, first if has_any_rows(spec) else None)))
        return known[-1][1]

    def holds(self, kind: str, token: Any) -> bool:
        """Whether anything is kept that was traced under a token."""
        return self._tokens.get(kind) is token and bool(self._kept.get(kind))

    def forget(self, kind: str) -> None:
        """Drops what is kept of a kind."""
        self._kept.pop(kind, None)

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


def _relaxed(spec: Any, other: Any) -> Any:
    """Returns the spec of both kinds of batches where they have one, or the first as it is."""
    both = [a if a == b else _supertype(a, b) for a, b in _pairs(spec, other)]
    # For tensors of any rank Keras traces, too, and fails.
    related = all(each is not None and getattr(each, "shape", _SCALAR).rank is not None for each in both)
    return tf.nest.pack_sequence_as(spec, both) if both and related else spec


def _supertype(spec: Any, other: Any) -> Any:
    return spec.most_specific_common_supertype([other]) if isinstance(spec, tf.TypeSpec) else None


def _is_subtype(spec: Any, other: Any) -> bool:
    """Whether every batch of one kind is one of another."""
    pairs = _pairs(spec, other)
    return bool(pairs) and all(
        a == b or (hasattr(a, "is_subtype_of") and a.is_subtype_of(b)) for a, b in pairs
    )


def _pairs(spec: Any, other: Any) -> list[tuple[Any, Any]]:
    """Returns the specs of the tensors of two kinds of batches; none where their structures differ."""
    try:
        tf.nest.assert_same_structure(spec, other)
    except (TypeError, ValueError):
        return []
    return list(zip(tf.nest.flatten(spec), tf.nest.flatten(other), strict=True))


def function_key(function: Any) -> Hashable:
    """Returns what tells a function from others: a bound method is told by its object, too."""
    owner = getattr(function, "__self__", None)
    if owner is None:
        return Same(function)
    return Same(getattr(function, "__func__", function)), Same(owner)
