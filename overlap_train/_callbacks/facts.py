"""What a reading of code has found in objects and variables, and whether it is still to be found there."""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from overlap_train._callbacks.held import met
from overlap_train._callbacks.leads import is_apart, is_still_apart
from overlap_train._callbacks.origins import CALLABLE, Given, Known, is_simple

__all__ = ["MISSING", "Fact", "all_hold", "look_up", "variables_of"]

MISSING = object()
_OF_FUNCTION = ("__code__", "__defaults__", "__kwdefaults__")


class Fact(NamedTuple):
    """What has been found under a name.

    Attributes:
        owner: an object, a module or a class, the globals of a function, or a cell of its closure.
        name: of the attribute or the variable.
        found: the object, or `Given` for what is known of it only.
        apart: whether it is a library's object that has led nowhere. Somebody may hand it the model since.
    """

    owner: Any
    name: str
    found: Any
    apart: bool = False

    def holds(self) -> bool:
        """Whether the same would be found now; numbers and texts are the same if they are equal."""
        now = look_up(self.owner, self.name)
        if now is self.found:
            return not self.apart or is_still_apart(now)
        if isinstance(self.found, Given):
            with contextlib.suppress(Exception):  # of objects of any class
                return met(now) is self.found
            return False
        return is_simple(now) and type(now) is type(self.found) and bool(now == self.found)

    @classmethod
    def of(cls, owner: Any, name: str, value: Any, found: Any) -> Fact:
        """Returns the fact that a value has been found, of which something is known."""
        if not isinstance(found, Known):
            return cls(owner, name, found)
        return cls(owner, name, value, not isinstance(value, CALLABLE) and is_apart(value))


def all_hold(facts: Iterable[Fact]) -> bool:
    """Whether all that has been found would be found again."""
    return all(fact.holds() for fact in facts)


def look_up(owner: Any, name: str) -> Any:
    """Returns what is under a name, without running any code; `MISSING` if nothing is."""
    if isinstance(owner, types.CellType):
        try:
            return owner.cell_contents
        except ValueError:
            return MISSING
    if isinstance(owner, dict):
        return owner.get(name, MISSING)
    if isinstance(owner, types.FunctionType) and name in _OF_FUNCTION:
        return getattr(owner, name)
    if isinstance(owner, type):
        return _in_class(owner, name)
    found, live = _in_class(type(owner), name), variables_of(owner)
    if isinstance(found, types.MemberDescriptorType):
        return _slot(found, owner)
    if name in live and (found is MISSING or not hasattr(type(found), "__set__")):
        return live[name]
    return found


def variables_of(owner: Any) -> Mapping[str, Any]:
    """Returns the attributes of an object itself, those in slots too, without running any code."""
    try:
        found: Mapping[str, Any] = object.__getattribute__(owner, "__dict__")
    except AttributeError:
        found = {}
    kind: Any = type(owner)
    slots = _slots_of(kind)
    if not slots:
        return found
    kept = {name: _slot(slot, owner) for name, slot in slots}
    return {**found, **{name: value for name, value in kept.items() if value is not MISSING}}


@functools.lru_cache(maxsize=1024)
def _slots_of(kind: Any) -> tuple[tuple[str, Any], ...]:
    """Returns the slots that the `__slots__` of a class written in Python and of its bases have made."""
    return tuple(
        (name, member)
        for base in reversed(kind.__mro__)
        if "__slots__" in vars(base)
        for name, member in vars(base).items()
        if isinstance(member, types.MemberDescriptorType)
    )


def _in_class(kind: type, name: str) -> Any:
    return next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), MISSING)


def _slot(found: Any, owner: Any) -> Any:
    try:
        return found.__get__(owner)
    except AttributeError:
        return MISSING
