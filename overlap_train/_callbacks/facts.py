"""What a reading of code has found in objects and variables, and whether it is still to be found there."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterable
from typing import Any, NamedTuple

from overlap_train._callbacks.held import met
from overlap_train._callbacks.origins import SIMPLE, Given, Known

__all__ = ["MISSING", "Fact", "all_hold", "look_up"]

MISSING = object()


class Fact(NamedTuple):
    """What has been found under a name.

    Attributes:
        owner: an object, a module or a class, the globals of a function, or a cell of its closure.
        name: of the attribute or the variable.
        found: the object, or `Given` for what is known of it only.
    """

    owner: Any
    name: str
    found: Any

    def holds(self) -> bool:
        """Whether the same would be found now; numbers and texts are the same if they are equal."""
        now = look_up(self.owner, self.name)
        if now is self.found:
            return True
        if isinstance(self.found, Given):
            with contextlib.suppress(Exception):  # of objects of any class
                return met(now) is self.found
            return False
        return isinstance(now, SIMPLE) and type(now) is type(self.found) and bool(now == self.found)

    @classmethod
    def of(cls, owner: Any, name: str, value: Any, found: Any) -> Fact:
        """Returns the fact that a value has been found, of which something is known."""
        return cls(owner, name, value if isinstance(found, Known) else found)


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
    if not isinstance(owner, type):
        live = getattr(owner, "__dict__", {})
        if name in live:
            return live[name]
    for base in (owner if isinstance(owner, type) else type(owner)).__mro__:
        if name in vars(base):
            found = vars(base)[name]
            slot = isinstance(found, types.MemberDescriptorType) and not isinstance(owner, type)
            return _slot(found, owner) if slot else found
    return MISSING


def _slot(found: Any, owner: Any) -> Any:
    try:
        return found.__get__(owner)
    except AttributeError:
        return MISSING
