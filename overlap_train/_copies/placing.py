"""Copies of what objects hold, put back where it was.

Variables are assigned. Objects, generators and containers that are still there are changed themselves, so
that whoever shares them sees it. What several have held in common they hold in common again, also where each
has one of its own by now; what had parted is parted. So it is decided for all values together which live
object takes which, before the first is put back.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from overlap_train._copies import objects
from overlap_train._copies.fitting import are_equal, has_to_be_there, takes
from overlap_train._copies.generators import GeneratorValue, made_generator, set_generator
from overlap_train._copies.hashing import Members
from overlap_train._copies.objects import Classes, NotPutBackError, ObjectValue
from overlap_train._copies.values import VariableValue, copied, is_shareable, is_variable, tf_variable
from overlap_train._inspection.lookup import variables_of

__all__ = ["Placing", "members_of"]

_LISTS = (list, tuple, deque)
_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes})
# Live objects at the places of one value. More would be walked through again and again.
_MOST_OFFERS = 8
_OTHER = object()


class Placing:
    """Puts values back that may hold the same objects.

    `offer` all of them, then `settle` once; then `require` and `put` those that are to be put back.
    """

    def __init__(self, *, tells_sharing: bool = True) -> None:
        """Begins with nothing.

        Args:
            tells_sharing: whether what several hold has one copy; else equal copies may be of one object.
        """
        self._tells_sharing = tells_sharing
        self._offers: dict[int, tuple[Any, list[Any]]] = {}
        self._places: dict[int, Any] = {}
        self._new: dict[int, Any] = {}
        self._sound: set[int] = set()
        self._found: dict[int, Any] = {}
        self._members: dict[bool, Members] = {}
        self._classes_there: dict[str, type] = {}
        self._classes: Classes = lambda name: None
        self._copy_arrays = True

    def turn_to(self, classes: Classes, *, copy_arrays: bool = True) -> None:
        """Says whose values come next.

        Args:
            classes: finds the classes of objects that are to be made.
            copy_arrays: whether who holds them may write into its arrays.
        """
        self._classes, self._copy_arrays = classes, copy_arrays

    def offer(self, live: Any, value: Any) -> None:
        """Notes what is live where a value belongs, and where what it holds does.

        Args:
            live: what is there now.
            value: what `copied` returned.
        """
        left = [(live, value)]
        while left:
            live, value = left.pop()
            if live is None or type(value) in _PLAIN:
                continue
            if is_shareable(value):
                _, lives = self._offers.setdefault(id(value), (value, []))
                if len(lives) >= _MOST_OFFERS or any(each is live for each in lives):
                    continue
                lives.append(live)
            left += reversed([*self._pairs(live, value)])

    def _pairs(self, live: Any, value: Any) -> Iterator[tuple[Any, Any]]:
        """Yields what a live object holds with what a value holds in the same places."""
        if isinstance(value, ObjectValue):
            if objects.class_name(type(live)) != value.kind or objects.state_variables(live) is not None:
                return
            self._classes_there[value.kind] = type(live)
            yield objects.content_of(live)[1], value.items
            known = variables_of(live)
            yield from ((known.get(name), part) for name, part in value.attributes.items())
        elif isinstance(value, dict):
            yield from self._pairs_of_dict(live, value)
        elif isinstance(value, _LISTS) and isinstance(live, _LISTS) and not _are_plain(value):
            yield from zip(objects.content_of(live)[1], value, strict=False)

    def _pairs_of_dict(self, live: Any, value: Mapping[Any, Any]) -> Iterator[tuple[Any, Any]]:
        """Yields the items of two dicts by equal keys, and those of keys that are objects row by row."""
        if not isinstance(live, dict):
            return
        rows = list(dict.items(live))
        for number, (key, item) in enumerate(value.items()):
            found, there = self._found_in(live, key)
            if found:
                yield there, item
            elif number < len(rows):
                yield from zip(rows[number], (key, item), strict=True)

    def _found_in(self, live: dict[Any, Any], key: Any) -> tuple[bool, Any]:
        """Returns whether a key is one that a live dict can be asked for, and what is there."""
        try:
            found = self._found_key(key)
            return found is not _OTHER, dict.get(live, found)
        except Exception:  # of a key whose class has no hash, say
            return False, None

    def _found_key(self, key: Any) -> Any:
        """Returns what a key is in a live dict, or `_OTHER` if that is an object that is one by itself."""
        if isinstance(key, (tuple, frozenset)):
            parts = [self._found_key(part) for part in key]
            return _OTHER if any(part is _OTHER for part in parts) else type(key)(parts)
        if not isinstance(key, ObjectValue):
            return key
        if id(key) not in self._found:
            self._found[id(key)] = _OTHER
            with contextlib.suppress(NotPutBackError, ValueError):
                made = objects.made(replace(key, items=self._found_key(key.items)), self._class_named)
                self._found[id(key)] = _OTHER if objects.changes(made) else made
        return self._found[id(key)]

    def settle(self) -> None:
        """Decides which live object takes which value: each takes one, those with the least choice first."""
        taken: dict[int, Any] = {}
        fitting = [
            (value, [live for live in lives if takes(live, value)]) for value, lives in self._offers.values()
        ]
        for value, lives in sorted(fitting, key=lambda pair: len(pair[1])):
            free = [live for live in lives if id(live) not in taken]
            if not self._tells_sharing:
                shared = [live for live in lives if are_equal(taken.get(id(live)), value)]
                free = shared or free or [live for live in lives if has_to_be_there(value)]
            if free:
                taken[id(free[0])] = value
                self._places[id(value)] = free[0]

    def require(self, value: Any, *, variables: bool = True) -> None:
        """Makes sure that a value can be put back, and changes nothing.

        Args:
            value: as offered, if there was something live in its place.
            variables: whether a variable has to be there.

        Raises:
            ValueError: a variable is to be put back where there is none, or one of another shape or dtype; or
                a member of a set has no hash.
            NotPutBackError: an object cannot be put back.
        """
        if variables not in self._members:
            trial = _Trial(self._class_named, self._places, stands_in=variables)
            self._members[variables] = Members(trial.put, lambda: trial.stood_in)
        self._members[variables].check(value)
        left, seen = [value], set()
        while left:
            value = left.pop()
            if type(value) in _PLAIN or id(value) in seen or id(value) in self._sound:
                continue
            if is_shareable(value):
                seen.add(id(value))
            if isinstance(value, VariableValue):
                self._require_variable(value, variables)
            elif isinstance(value, ObjectValue):
                left += self._required_of(value)
            elif isinstance(value, dict):
                left += [*value.keys(), *value.values()]
            elif isinstance(value, (*_LISTS, set, frozenset)) and not _are_plain(value):
                left += value
        self._sound |= seen

    def _required_of(self, value: ObjectValue) -> list[Any]:
        """Makes sure that an object is there or can be made; returns what it needs in turn."""
        live = self._places.get(id(value))
        if live is None:
            for other in self._offers.get(id(value), (value, []))[1]:
                same = objects.class_name(type(other)) == value.kind
                if same and objects.state_variables(other) is not None:
                    raise NotPutBackError(f"the {type(other).__name__} has other variables")
            objects.made(value, self._class_named)
        elif objects.state_variables(live) is not None:
            return []
        else:
            objects.check_object(type(live), value)
        return [value.items, *value.attributes.values()]

    def _require_variable(self, value: VariableValue, needed: bool) -> None:
        if id(value) in self._places or not needed:
            return
        lives = self._offers.get(id(value), (value, []))[1]
        kept = f"{value.tensor.shape} {value.tensor.dtype.name}"
        for live in lives:
            if is_variable(live):
                target = tf_variable(live)
                raise ValueError(
                    f"it was a variable of {kept}, and now it is one of {target.shape} {target.dtype.name}"
                )
        now = type(lives[0] if lives else None).__name__
        raise ValueError(f"it was a variable, and now it is of type {now}")

    def put(self, value: Any) -> Any:
        """Returns what a value becomes; nothing of the value that can change is handed out."""
        if type(value) in _PLAIN:
            return value
        if not is_shareable(value):
            return self._put(value)
        if id(value) not in self._new:
            self._new[id(value)] = self._put(value)
        return self._new[id(value)]

    def _put(self, value: Any) -> Any:
        live = self._places.get(id(value)) if is_shareable(value) else None
        if isinstance(value, VariableValue):
            return value.tensor if live is None else _assigned(live, value)
        if isinstance(value, GeneratorValue):
            if live is None:
                return made_generator(value)
            set_generator(live, value)
            return live
        if isinstance(value, ObjectValue):
            return self._put_object(live, value)
        if isinstance(value, dict):
            new: Any = {self.put(key): self.put(item) for key, item in value.items()}
        elif isinstance(value, deque):
            new = deque(map(self.put, value), value.maxlen)
        elif isinstance(value, (list, tuple, set, frozenset)):
            new = type(value)(map(self.put, value))
        else:
            return copied(value, copy_arrays=self._copy_arrays)
        if live is None:
            return new
        objects.fill(live, new)
        return live

    def _put_object(self, live: Any, value: ObjectValue) -> Any:
        variables = None if live is None else objects.state_variables(live)
        if variables is not None:
            for variable, item in zip(variables, value.items, strict=True):
                if item is not None:
                    _assigned(variable, item)
            return live
        items = self.put(value.items)
        target = live
        if live is None:
            target = objects.made(replace(value, items=items), self._class_named)
        if items is not None and objects.changes(target):
            objects.fill(target, items)
        objects.set_attributes(target, {name: self.put(part) for name, part in value.attributes.items()})
        return target

    def _class_named(self, name: str) -> type | None:
        return self._classes_there.get(name) or self._classes(name)


class _Trial(Placing):
    """Makes values apart from what is live, which stays as it is.

    Attributes:
        stood_in: whether something else has stood for what can only be there.
    """

    def __init__(self, classes: Classes, there: Mapping[int, Any], *, stands_in: bool) -> None:
        super().__init__()
        self.turn_to(classes, copy_arrays=False)
        self._there, self._stands_in = there, stands_in
        self.stood_in = False

    def _put(self, value: Any) -> Any:
        if not isinstance(value, (VariableValue, ObjectValue)):
            return super()._put(value)
        live = self._there.get(id(value))
        if isinstance(value, VariableValue) and (live is not None or not self._stands_in):
            return value.tensor if live is None else live
        if isinstance(value, ObjectValue):
            with contextlib.suppress(NotPutBackError):
                return super()._put(value)
        if live is None:
            self.stood_in = True
        return object() if live is None else live


def members_of(classes: Classes) -> Members:
    """Returns what checks the members of sets before it is known what is live in their places."""
    trial = _Trial(classes, {}, stands_in=True)
    return Members(trial.put, lambda: trial.stood_in)


def _are_plain(items: Iterable[Any]) -> bool:
    """Whether there is nothing to look into, as in a history, which is long."""
    return _PLAIN.issuperset(map(type, items))


def _assigned(live: Any, value: VariableValue) -> Any:
    tf_variable(live).assign(value.tensor)
    return live
