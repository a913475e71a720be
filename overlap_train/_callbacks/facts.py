"""What a reading of code has found in objects and variables, and whether it is still to be found there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any, NamedTuple

from overlap_train._callbacks.given import CALLABLE, Given, Known
from overlap_train._callbacks.held import met
from overlap_train._callbacks.leads import is_apart, is_still_apart
from overlap_train._inspection.lookup import look_up
from overlap_train._inspection.origins import is_simple

__all__ = ["Fact", "all_hold"]


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
