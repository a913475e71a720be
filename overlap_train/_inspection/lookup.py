"""What objects, classes, closures and the globals of modules hold under a name, without running any code."""

from __future__ import annotations

import functools
import types
from collections.abc import Mapping
from typing import Any

from overlap_train._inspection.code import content_of

__all__ = ["MISSING", "OF_FUNCTIONS", "look_up", "variables_of"]

MISSING = object()
OF_FUNCTIONS = ("__code__", "__defaults__", "__kwdefaults__")


def look_up(owner: Any, name: str) -> Any:
    """Returns what is under a name, without running any code; `MISSING` if nothing is."""
    if isinstance(owner, types.CellType):
        return next(iter(content_of(owner)), MISSING)
    if isinstance(owner, dict):
        return owner.get(name, MISSING)
    if isinstance(owner, types.FunctionType) and name in OF_FUNCTIONS:
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
