"""The traces of a model, which live as long as the model, or until Keras would trace it again (C11).

Traces and the loops built around them hold no data and no trainer, so that they serve every `fit`, `evaluate`
and `Trainer` of the model. A trace is valid as long as Keras's own train or test function, its token, which
`compile` removes and `make_train_function(force=True)` replaces.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar

import keras

from overlap_train._inspection.specs import is_subtype, relaxed
from overlap_train._inspection.traced import has_any_rows

T = TypeVar("T")

_ATTRIBUTE = "_overlap_train_traces"


@dataclass(frozen=True, eq=False)
class Same:
    """A key that equals another one of the same object, which stays alive, so that its `id` stays its own."""

    thing: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.thing is self.thing

    def __hash__(self) -> int:
        return id(self.thing)


class Traces:
    """The traces of one model. Belongs to the thread that trains it."""

    def __init__(self) -> None:
        self._tokens: dict[str, Any] = {}
        self._kept: dict[str, dict[Hashable, Any]] = {}

    @classmethod
    def of(cls, model: keras.Model) -> Traces:
        """Return the traces of a model."""
        # Past Keras's tracking of attributes, so that they are not saved.
        traces: Traces = vars(model).setdefault(_ATTRIBUTE, cls())
        return traces

    @classmethod
    def set_aside(cls, model: keras.Model) -> contextlib.ExitStack:
        """Drop the traces of a block at its end, Keras's functions included."""
        undo = contextlib.ExitStack()
        for name in (_ATTRIBUTE, "train_function", "test_function"):
            if name in vars(model):
                undo.callback(object.__setattr__, model, name, vars(model)[name])
            else:
                undo.callback(vars(model).pop, name, None)
        traces, copy = cls.of(model), cls()
        copy._tokens = dict(traces._tokens)
        copy._kept = {kind: dict(values) for kind, values in traces._kept.items()}
        object.__setattr__(model, _ATTRIBUTE, copy)
        return undo

    def get(self, kind: str, token: Any, key: Hashable, build: Callable[[], T]) -> T:
        """Return the value under a key; at the first time, and under another token, that of `build`."""
        if kind not in self._kept or self._tokens.get(kind) is not token:
            self._tokens[kind], self._kept[kind] = token, {}
        values = self._kept[kind]
        if key not in values:
            values[key] = build()
        result: T = values[key]
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
        """Return the trace of a step for batches of `spec`, or that of `build`.

        As under `tf.function(reduce_retracing=True)`, a trace for batches of any size serves those of a known
        size, and after batches of one size, those of another are traced for any size. `rows` are those of the
        first batch where Keras traces a step for that size and again for others; `build` takes a spec, and
        these rows where the spec has none.
        """
        traces: list[tuple[Any, T]] = self.get(kind, token, (key, "for"), list)
        matches = [(other, value) for other, value in traces if is_subtype(spec, other)]
        for other, value in matches:
            if all(is_subtype(other, another) for another, _ in matches):
                return value
        for other, _ in traces:
            spec = relaxed(spec, other)
        first = self.get(kind, token, ("first_rows",), lambda: rows) if rows else None
        traces.append((spec, build(spec, first if has_any_rows(spec) else None)))
        return traces[-1][1]

    def holds(self, kind: str, token: Any) -> bool:
        """Whether there is any trace under a token."""
        return self._tokens.get(kind) is token and bool(self._kept.get(kind))

    def forget(self, kind: str) -> None:
        """Drop the traces of a kind."""
        self._kept.pop(kind, None)

    def has(self, kind: str, token: Any, key: Hashable) -> bool:
        """Whether there is a value under a key."""
        return self._tokens.get(kind) is token and key in self._kept.get(kind, {})

    def __reduce__(self) -> tuple[Any, ...]:
        """Let copies and pickles of a model begin without traces."""
        return Traces, ()


def function_key(function: Any) -> Hashable:
    """Return a key of a function; that of a bound method depends on its object, too."""
    owner = getattr(function, "__self__", None)
    if owner is None:
        return Same(function)
    return Same(getattr(function, "__func__", function)), Same(owner)
