"""What sets and dicts find their members and keys by, looked at before any is put into one for good.

A file decides on what is hashed: on numbers that share one hash, so that each is compared with all, on
objects whose class has no hash or misses an attribute for it, and on a few objects that hold each other so
often that their hash is computed for ever. So members are weighed, and those with objects are made and hashed
once apart from what is live. Their class's own `__hash__` is called, as when they are put back.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from overlap_train._copies.objects import ObjectValue

__all__ = ["Members", "spread"]

# With one hash, in one set. Python gives -1 and -2 the same one, so that points of a grid share theirs, by
# 64 in six dimensions; else equal hashes are those of one value or made on purpose.
_MOST_ALIKE = 64
_MOST_HASHED = 1 << 22  # parts of members, each counted as often as it is held: some seconds
_SIMPLE = frozenset((type(None), bool, int, float, complex, str, bytes))
_SETS = (set, frozenset)
_HOLDERS = (list, tuple, deque, dict, *_SETS, ObjectValue)


def spread(members: Iterable[Any]) -> list[Any]:
    """Returns members of a set, or keys of a dict, whose hashes tell them apart.

    Raises:
        TypeError: one has no hash.
        ValueError: too many have the same.
    """
    listed = list(members)
    _require_spread(map(hash, listed))
    return listed


class Members:
    """Checks what values hold by its hash. What several of them hold is looked at once."""

    def __init__(self, put: Callable[[Any], Any], stood_in: Callable[[], bool]) -> None:
        """Begins with nothing.

        Args:
            put: makes a value, apart from what is live.
            stood_in: whether something else has stood for an object that has to be there, so that what fails
                need not fail where that is.
        """
        self._put, self._stood_in = put, stood_in
        self._weights: dict[int, int] = {}
        self._with_objects: set[int] = set()
        self._kept: list[Any] = []  # so that each `id` stays its own
        self._hashed = 0

    def check(self, value: Any) -> None:
        """Makes sure that all that a value holds by its hash has one, and soon.

        Raises:
            ValueError: it has not.
        """
        self._kept.append(value)
        for holder in self._inside_out(value):
            members = holder if isinstance(holder, _SETS) else holder if isinstance(holder, dict) else ()
            objects = [member for member in members if id(member) in self._with_objects]
            self._hashed += sum(self._weights[id(member)] for member in objects)
            if self._hashed > _MOST_HASHED:
                raise ValueError(f"members of sets with more than {_MOST_HASHED} parts")
            if objects:
                _require_spread(map(self._hash, objects))

    def _hash(self, member: Any) -> int:
        try:
            return hash(self._put(member))
        except Exception as error:  # whatever its class raises
            if self._stood_in():
                return id(member)
            raise ValueError(f"a member of a set has no hash ({type(error).__name__})") from error

    def _inside_out(self, value: Any) -> Iterator[Any]:
        """Yields what holds others, behind all that it holds."""
        left = [(value, False)]
        while left:
            holder, weighed = left.pop()
            if not isinstance(holder, _HOLDERS) or id(holder) in self._weights:
                continue
            parts = _parts(holder)
            if not weighed:
                left.append((holder, True))
                left += [(part, False) for part in parts]
                continue
            weight = 1 + len(parts) // 256 + sum(map(self._weight, parts)) + _simple_weight(holder)
            self._weights[id(holder)] = min(weight, _MOST_HASHED + 1)
            if isinstance(holder, ObjectValue) or any(id(part) in self._with_objects for part in parts):
                self._with_objects.add(id(holder))
            yield holder

    def _weight(self, part: Any) -> int:
        return part.bit_length() >> 12 if type(part) is int else self._weights.get(id(part), 0)


def _parts(holder: Any) -> list[Any]:
    """Returns what is to be looked into of what holds others."""
    if isinstance(holder, ObjectValue):
        return [holder.items, *holder.attributes.values()]
    if isinstance(holder, dict):
        return [*holder.keys(), *holder.values()]
    return [] if _SIMPLE.issuperset(map(type, holder)) else list(holder)


def _simple_weight(holder: Any) -> int:
    """Returns what a list of plain values weighs, which is not looked into."""
    if isinstance(holder, (ObjectValue, dict)) or not _SIMPLE.issuperset(map(type, holder)):
        return 0
    return len(holder) // 256 + sum(part.bit_length() >> 12 for part in holder if type(part) is int)


def _require_spread(hashes: Iterable[int]) -> None:
    alike = max(Counter(hashes).values(), default=0)
    if alike > _MOST_ALIKE:
        raise ValueError(f"{alike} members of a set that have one hash")
