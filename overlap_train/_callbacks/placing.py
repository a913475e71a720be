"""Copies of what callbacks keep, put back where it was.

Variables are assigned. Objects, generators and containers that are still there are changed themselves, so
that whoever shares them sees it.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from overlap_train._callbacks import objects
from overlap_train._callbacks.generators import GeneratorValue, made_generator, set_generator
from overlap_train._callbacks.objects import Classes, NotPutBackError, ObjectValue
from overlap_train._callbacks.values import VariableValue, copied, is_variable, tf_variable
from overlap_train._inspection.lookup import variables_of

__all__ = ["put_back", "require_place"]

_IN_PLACE = (list, dict, set, deque)
_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes})


def put_back(
    live: Any,
    value: Any,
    *,
    in_place: bool,
    copy_arrays: bool = True,
    classes: Classes = lambda name: None,
) -> Any:
    """Returns what takes the place of a live value.

    Args:
        live: what is there now; variables in it are assigned.
        value: what `copied` returned; nothing of it that can change is handed out.
        in_place: whether to change a live container, object or generator itself, so that who else holds it
            sees it.
        copy_arrays: whether the callback may write into its arrays.
        classes: finds the classes of objects that are to be made.

    Raises:
        ValueError: a variable is to be restored where there is none, or one of another shape or dtype.
        NotPutBackError: an object cannot be put back.
    """
    placer = _Placer(copy_arrays, classes, in_place)
    return placer.settled(live, placer.put(live, value)) if in_place else placer.put(live, value)


@dataclass(frozen=True)
class _Placer:
    """Puts one value back, and all that it holds.

    Attributes:
        copy_arrays: whether the callback may write into its arrays.
        classes: finds the classes of objects that are to be made.
        in_place: whether live objects and generators may be changed themselves.
    """

    copy_arrays: bool
    classes: Classes
    in_place: bool

    def settled(self, live: Any, new: Any) -> Any:
        """Returns a live container with new content, or the new one if they are of different kinds."""
        if live is new or type(live) is not type(new) or type(live) not in _IN_PLACE:
            return new
        if isinstance(live, deque) and live.maxlen != new.maxlen:
            return new
        objects.fill(live, new)
        return live

    def put(self, live: Any, value: Any) -> Any:
        """Returns what takes the place of a live value; containers are new ones."""
        if isinstance(value, VariableValue):
            return _assigned(live, value)
        if isinstance(value, GeneratorValue):
            return live if self.in_place and set_generator(live, value) else made_generator(value)
        if isinstance(value, ObjectValue):
            return self._object(live, value)
        if isinstance(value, dict):
            known = live if isinstance(live, dict) else {}
            keys = [self.put(None, key) for key in value]
            parts = zip(keys, value.values(), strict=True)
            return {key: self.put(known.get(key), item) for key, item in parts}
        if isinstance(value, (set, frozenset)):
            return type(value)(self.put(None, item) for item in value)
        if isinstance(value, (list, tuple, deque)):
            old = list(live) if isinstance(live, (list, tuple, deque)) else []
            items = [self.put(o, item) for o, item in zip_longest(old[: len(value)], value)]
            return deque(items, value.maxlen) if isinstance(value, deque) else type(value)(items)
        return copied(value, copy_arrays=self.copy_arrays)

    def _object(self, live: Any, value: ObjectValue) -> Any:
        same = objects.class_name(type(live)) == value.kind
        variables = objects.state_variables(live) if same else None
        if variables is not None:
            for variable, item in zip(variables, value.items, strict=True):
                if item is not None:
                    _assigned(variable, item)
            return live
        if same and self.in_place and objects.changes(live):
            target = live
        elif type(live) is defaultdict:
            target = defaultdict(live.default_factory)
        else:
            items = self.put(None, value.items)
            target = objects.made(replace(value, items=items), self._classes(live))
            if not objects.changes(target):
                return target
        if value.items is not None:
            objects.fill(target, self.put(objects.content_of(live)[1] if same else None, value.items))
        self._set_attributes(target, dict(variables_of(target)) if target is live else {}, value)
        return target

    def _set_attributes(self, target: Any, known: Mapping[str, Any], value: ObjectValue) -> None:
        """Sets an object's attributes; what two of those that are known hold is not changed itself."""
        holders = Counter(map(id, known.values()))
        new = {}
        for name, part in value.attributes.items():
            old = known.get(name)
            own = replace(self, in_place=name in known and holders[id(old)] == 1)
            new[name] = own.settled(old, own.put(old, part)) if own.in_place else own.put(old, part)
        objects.set_attributes(target, new)

    def _classes(self, live: Any) -> Classes:
        name = objects.class_name(type(live))
        return lambda each: type(live) if each == name else self.classes(each)


def require_place(live: Any, value: Any, classes: Classes = lambda name: None) -> None:
    """Makes sure that `put_back` finds the place of a value, and changes nothing.

    Raises:
        ValueError: a variable is to be restored where there is none, or one of another shape or dtype.
        NotPutBackError: an object has no place.
    """
    if isinstance(value, VariableValue):
        _require_variable(live, value)
    elif isinstance(value, ObjectValue):
        _require_object(live, value, classes)
    elif isinstance(value, dict):
        known = live if isinstance(live, dict) else {}
        for key, item in value.items():
            require_place(None, key, classes)
            require_place(known.get(key) if not isinstance(key, ObjectValue) else None, item, classes)
    elif isinstance(value, (list, tuple, deque, set, frozenset)):
        if _PLAIN.issuperset(map(type, value)):
            return
        old = list(live) if isinstance(live, (list, tuple, deque)) else []
        for part, item in zip_longest(old[: len(value)], value):
            require_place(part, item, classes)


def _require_object(live: Any, value: ObjectValue, classes: Classes) -> None:
    same = objects.class_name(type(live)) == value.kind
    variables = objects.state_variables(live) if same else None
    if variables is not None:
        _require_variables(live, variables, value)
        return
    if not same:
        objects.made(value, classes)
    known = variables_of(live) if same else {}
    require_place(None, value.items, classes)
    for name, part in value.attributes.items():
        require_place(known.get(name), part, classes)


def _require_variables(live: Any, variables: list[Any], value: ObjectValue) -> None:
    kept = value.items if isinstance(value.items, list) else []
    fits = len(kept) == len(variables)
    for variable, item in zip(variables, kept, strict=False):
        target = tf_variable(variable)
        fits &= item is None or (
            isinstance(item, VariableValue)
            and target.dtype == item.tensor.dtype
            and target.shape.is_compatible_with(item.tensor.shape)
        )
    if not fits:
        raise NotPutBackError(f"the {type(live).__name__} has other variables")


def _assigned(live: Any, value: VariableValue) -> Any:
    _require_variable(live, value)
    tf_variable(live).assign(value.tensor)
    return live


def _require_variable(live: Any, value: VariableValue) -> None:
    if not is_variable(live):
        raise ValueError(f"it was a variable, and now it is of type {type(live).__name__}")
    target = tf_variable(live)
    if target.dtype != value.tensor.dtype or not target.shape.is_compatible_with(value.tensor.shape):
        raise ValueError(
            f"it was a variable of {value.tensor.shape} {value.tensor.dtype.name}, and now it is one of "
            f"{target.shape} {target.dtype.name}"
        )
