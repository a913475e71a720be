"""What a callback's variables may hold where the ways through its code part and meet."""

from __future__ import annotations

import types
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import keras

from overlap_train._callbacks.given import Given, Known
from overlap_train._callbacks.leads import is_apart
from overlap_train._inspection.code import Unclear
from overlap_train._inspection.origins import is_simple
from overlap_train._inspection.sources import Definition

__all__ = ["UNCLEAR", "Frame", "Inner", "either", "equal", "identical", "item_of", "merged", "same", "truth"]

UNCLEAR = object()
"""Stands for a variable that may be one of several things."""


@dataclass
class Frame:
    """One call that is being read.

    Attributes:
        function: whose globals its names are looked up in.
        names: its variables.
        returned: what it may return.
        loops: for each loop around, the variables where a way leaves its body early.
    """

    function: types.FunctionType
    names: dict[str, Any]
    returned: list[Any] = field(default_factory=list)
    loops: list[list[dict[str, Any]]] = field(default_factory=list)
    _trails: list[list[dict[str, Any]]] = field(default_factory=list)

    def bind(self, name: str, value: Any) -> None:
        """Sets a variable."""
        self.names[name] = value
        for trail in self._trails:
            trail.append({name: value})

    def begin_trail(self) -> None:
        """Keeps all that variables hold from now on, as code may be left anywhere."""
        self._trails.append([dict(self.names)])

    def end_trail(self) -> dict[str, Any]:
        """Returns the variables as they may be wherever the code since `begin_trail` has been left."""
        return merged([*self._trails.pop(), self.names])


@dataclass(frozen=True, eq=False)
class Inner:
    """A function that is defined inside another one."""

    node: Definition
    frame: Frame


def truth(value: Any) -> bool | None:
    """Returns whether a value is true, or None if that may be the one or the other."""
    if isinstance(value, Known) and value.fixed and is_simple(value.value):
        return bool(value.value)
    return None


def either(values: Sequence[Any]) -> Any:
    """Returns what a value is that may be one of several.

    Raises:
        Unclear: they are too different.
    """
    first = values[0]
    if all(value is first or identical(first, value) is True for value in values):
        return first
    for value in values:
        if not (_is_data(value) if isinstance(value, Known) else isinstance(value, Given)):
            raise Unclear
    return Given.PART if any(value is Given.PART for value in values) else Given.DATA


def merged(ways: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns the variables after several ways have met."""
    names: dict[str, Any] = {}
    for name in {name for way in ways for name in way}:
        try:
            names[name] = either([way[name] for way in ways if name in way])
        except Unclear:
            names[name] = UNCLEAR
    return names


def same(left: dict[str, Any], right: dict[str, Any]) -> bool:
    """Whether variables hold the same."""
    return left.keys() == right.keys() and all(_is_same(value, right[name]) for name, value in left.items())


def _is_same(left: Any, right: Any) -> bool:
    if isinstance(left, Known) and isinstance(right, Known):
        return left.value is right.value and left.fixed == right.fixed
    return left is right


def item_of(value: Any) -> Any:
    """Returns what is in a value.

    Raises:
        Unclear: it cannot be told.
    """
    if isinstance(value, tuple):
        return either(value) if value else Given.DATA
    if isinstance(value, Given):
        return Given.PART if value is Given.PART else Given.DATA
    if isinstance(value, Known) and _is_data(value):
        return Given.DATA
    raise Unclear


def _is_data(known: Known) -> bool:
    """Whether an object cannot lead to the training."""
    if is_simple(known.value):
        return True
    return not isinstance(known.value, keras.callbacks.Callback) and is_apart(known.value)


def identical(left: Any, right: Any) -> bool | None:
    """Returns whether two values are the same object, or None if that cannot be told."""
    if isinstance(left, Known) and isinstance(right, Known) and left.fixed and right.fixed:
        if left.value is right.value:
            return True
        known = (left.value is None) or (right.value is None)
        return False if known else None
    return None


def equal(left: Any, right: Any) -> bool | None:
    """Returns whether two values are equal, or None if that cannot be told."""
    if truth(left) is not None and truth(right) is not None:
        return bool(left.value == right.value)
    for one, other in ((left, right), (right, left)):
        if one is Given.LATER and isinstance(other, Known) and type(other.value) is int and other.value <= 0:
            return False
    return None
