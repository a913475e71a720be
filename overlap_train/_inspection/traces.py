"""The traces of a model, which live as long as the model, or until Keras would trace it again (C11).

Traces and the loops built around them hold no data and no trainer, so that they serve every `fit`, `evaluate`
and `Trainer` of the model. A trace is valid as long as Keras's own train or test function, which `compile`
removes and `make_train_function(force=True)` replaces.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import keras

from overlap_train._inspection.specs import is_subtype, relaxed
from overlap_train._inspection.traced import has_any_rows

T = TypeVar("T")

Kind = Literal["train", "test"]
_ATTRIBUTES: dict[Kind, str] = {kind: f"_overlap_train_{kind}_traces" for kind in ("train", "test")}


@dataclass(frozen=True, eq=False)
class Same:
    """A key that equals another one of the same object, which stays alive, so that its `id` stays its own."""

    thing: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.thing is self.thing

    def __hash__(self) -> int:
        return id(self.thing)


class Traces:
    """The traces of one kind that a model has. Belongs to the thread that trains it."""

    def __init__(self, function: Any = None, values: Mapping[Hashable, Any] | None = None) -> None:
        self._function = function
        self._values = dict(values or {})

    @classmethod
    def of(cls, model: keras.Model, kind: Kind) -> Traces:
        """Return the traces that Keras's present function has; makes that function, without tracing it."""
        getattr(model, f"make_{kind}_function")()
        function = getattr(model, f"{kind}_function")
        # Past Keras's tracking of attributes, so that they are not saved.
        traces: Traces = vars(model).setdefault(_ATTRIBUTES[kind], cls(function))
        if traces._function is not function:
            traces._function, traces._values = function, {}
        return traces

    @classmethod
    def set_aside(cls, model: keras.Model) -> contextlib.ExitStack:
        """Drop the traces of a block at its end, Keras's functions included."""
        undo, attributes = contextlib.ExitStack(), vars(model)
        for name in (*_ATTRIBUTES.values(), "train_function", "test_function"):
            if name in attributes:
                undo.callback(object.__setattr__, model, name, attributes[name])
            else:
                undo.callback(attributes.pop, name, None)
        for name in attributes.keys() & _ATTRIBUTES.values():
            attributes[name] = cls(attributes[name]._function, attributes[name]._values)
        return undo

    @staticmethod
    def forget(model: keras.Model, kind: Kind) -> None:
        """Drop the traces of a kind."""
        vars(model).pop(_ATTRIBUTES[kind], None)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._values

    def __bool__(self) -> bool:
        return bool(self._values)

    def get(self, key: Hashable, build: Callable[[], T]) -> T:
        """Return the value under a key, at the first time that of `build`."""
        if key not in self._values:
            self._values[key] = build()
        result: T = self._values[key]
        return result

    def get_step(
        self, key: Hashable, spec: Any, rows: int | None, build: Callable[[Any, int | None], T]
    ) -> T:
        """Return the trace of a step for batches of `spec`, or that of `build`.

        As under `tf.function(reduce_retracing=True)`, a trace for batches of any size serves those of a known
        size, and after batches of one size, those of another are traced for any size. `rows` are those of the
        first batch where Keras traces a step for that size and again for others; `build` takes a spec, and
        these rows where the spec has none.
        """
        traces: list[tuple[Any, T]] = self.get((key, "for"), list)
        matches = [(other, value) for other, value in traces if is_subtype(spec, other)]
        for other, value in matches:
            if all(is_subtype(other, another) for another, _ in matches):
                return value
        for other, _ in traces:
            spec = relaxed(spec, other)
        first = self.get(("first_rows",), lambda: rows) if rows else None
        traces.append((spec, build(spec, first if has_any_rows(spec) else None)))
        return traces[-1][1]

    def __reduce__(self) -> tuple[Any, ...]:
        """Let copies and pickles of a model begin without traces."""
        return Traces, ()


def function_key(function: Any) -> Hashable:
    """Return a key of a function; that of a bound method depends on its object, too."""
    owner = getattr(function, "__self__", None)
    if owner is None:
        return Same(function)
    return Same(getattr(function, "__func__", function)), Same(owner)
