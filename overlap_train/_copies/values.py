"""Values that objects hold, copied so that what happens later does not reach the copy.

Copied are None, numbers, text, bytes, containers of such, values of Python's standard library (`standard`),
NumPy scalars and arrays, eager tensors, variables by value, random generators by their state, and objects by
their attributes (`objects`). Anything else is a resource (a file, a writer, a thread) that stays with the
live object. What two names hold in common has one copy, so that they hold it in common again.
"""

from __future__ import annotations

import array
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from overlap_train._copies import objects
from overlap_train._copies.generators import GeneratorValue, copied_generator, is_generator
from overlap_train._copies.objects import ObjectValue
from overlap_train._copies.standard import is_standard

__all__ = [
    *("DEEPEST", "Copies", "LookInto", "Resource", "VariableValue", "copied", "is_shareable", "is_variable"),
    *("standing_in", "tf_variable"),
]

_IMMUTABLE = frozenset({type(None), bool, int, float, complex, str, bytes})
_SEQUENCES = (list, tuple, set, frozenset)
# Containers in each other: to copy, pack and put back more could exhaust the stack. `packing` reads as many.
DEEPEST = 60
_LONGEST_NAME = 80  # of an attribute of an attribute, as messages call it
_CONTAINERS = (*_SEQUENCES, dict, deque)
_BUFFERS = (bytearray, array.array)

LookInto = Callable[[Any], Mapping[str, Any] | None]


class Resource(Exception):
    """A value, or something in it, cannot be copied.

    Attributes:
        constant: whether nothing is lost by that.
    """

    def __init__(self, what: str, *, constant: bool = False) -> None:
        super().__init__(what)
        self.constant = constant


@dataclass(frozen=True)
class VariableValue:
    """The value of a Keras or TensorFlow variable; it shares the variable's buffer."""

    tensor: tf.Tensor


class Copies:
    """The copies of what several may hold; each object has one."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[Any, Any, int]] = {}  # with the object, so that its `id` stays its own
        self._partial: dict[int, Any] = {}
        self.deepest = 0  # containers around what has been copied last, as far as it goes down

    def of(self, value: Any) -> tuple[Any, int] | None:
        """Returns the copy of an object, and how many containers it has in each other; None for none."""
        known = self._of.get(id(value))
        return None if known is None else known[1:]

    def add(self, value: Any, copy: Any, height: int) -> None:
        """Keeps the copy of an object."""
        self._of[id(value)] = value, copy, height

    def add_partial(self, copy: Any) -> None:
        """Notes that a copy is not all that there is: it can be put back, and not be made anew."""
        self._partial[id(copy)] = copy

    def is_partial(self, copy: Any) -> bool:
        """Whether a copy is not all that there is."""
        return id(copy) in self._partial


def copied(
    value: Any,
    *,
    copy_arrays: bool = True,
    foreign: Collection[int] = (),
    look_into: LookInto = lambda value: None,
    copies: Copies | None = None,
    holder: Any = None,
) -> Any:
    """Returns a copy of a value; immutable parts are shared.

    Args:
        value: what somebody holds.
        copy_arrays: whether it may write into its arrays.
        foreign: the `id` of each variable that somebody else restores.
        look_into: returns the attributes that an object is made of, or None.
        copies: of what has been copied already, and may be held here too.
        holder: who keeps it: what refers to that in turn is put back where it is.

    Raises:
        Resource: a part of it cannot be copied.
    """
    above = () if holder is None else (id(holder),)
    return _Copier(copy_arrays, foreign, look_into, copies or Copies(), above).copy(value)


def is_shareable(copy: Any) -> bool:
    """Whether it shows if two names hold one of these: what can be changed, and what tells itself apart."""
    return type(copy) in _SHAREABLE


_SHAREABLE = frozenset(
    (*(list, dict, set, deque, *_BUFFERS, np.ndarray), *(VariableValue, ObjectValue, GeneratorValue))
)


@dataclass(frozen=True)
class _Copier:
    """Copies one value and all that it holds.

    Attributes:
        copy_arrays: whether who holds it may write into its arrays.
        foreign: the `id` of each variable that somebody else restores.
        look_into: returns the attributes that an object is made of, or None.
        copies: what has been copied.
        above: the `id` of what holds the value.
        alone: whether objects alone hold the value, so that it is put back where it is.
    """

    copy_arrays: bool
    foreign: Collection[int]
    look_into: LookInto
    copies: Copies
    above: tuple[int, ...] = ()
    alone: bool = True

    def copy(self, value: Any) -> Any:
        """Returns the copy of a value."""
        if type(value) in _IMMUTABLE or is_standard(value):
            return value
        depth, outside, known = len(self.above), self.copies.deepest, self.copies.of(value)
        if known is not None:
            return self._again(value, *known)
        self.copies.deepest = depth
        try:
            done = self._copied(value)
        except (MemoryError, Resource):
            raise
        except Exception as error:  # of a proxy whose object has gone, say: it tells nothing of itself
            raise Resource(f"{type(value).__name__} that raises {type(error).__name__}") from error
        if done is not value and is_shareable(done):
            self.copies.add(value, done, self.copies.deepest - depth)
        self.copies.deepest = max(outside, self.copies.deepest)
        return done

    def _again(self, value: Any, known: Any, height: int) -> Any:
        """Returns the copy that there is, if it may stand here too."""
        deepest = len(self.above) + height
        if deepest > DEEPEST:
            raise Resource(f"a container in more than {DEEPEST} others")
        if not self.alone and self.copies.is_partial(known):
            raise Resource(f"a {type(value).__name__} that cannot be made anew")
        self.copies.deepest = max(self.copies.deepest, deepest)
        return known

    def _copied(self, value: Any) -> Any:
        kind = type(value)
        if kind in _SEQUENCES and _IMMUTABLE.issuperset(map(type, value)):
            return kind(value)  # a history is long, and has nothing to look into
        if isinstance(value, (np.ndarray, np.generic)):
            return _copied_array(value, self.copy_arrays)
        if is_variable(value):
            if id(value) in self.foreign:
                raise Resource("a variable of the model", constant=True)
            return VariableValue(tf_variable(value).read_value())
        if isinstance(value, (VariableValue, ObjectValue, GeneratorValue)):
            return value
        if tf.is_tensor(value) and hasattr(value, "numpy") and hasattr(value, "dtype"):
            return _copied_tensor(value)
        if kind in _BUFFERS:
            return value[:]
        if is_generator(value):
            return copied_generator(value)
        return self._holder(value, kind)

    def _holder(self, value: Any, kind: type) -> Any:
        if id(value) in self.above:
            # An object that refers to one above it is put back where both are.
            raise Resource("a container that holds itself", constant=kind not in _CONTAINERS)
        if len(self.above) >= DEEPEST:
            raise Resource(f"a container in more than {DEEPEST} others")
        inside = replace(self, above=(*self.above, id(value)), alone=self.alone and kind not in _CONTAINERS)
        self.copies.deepest = max(self.copies.deepest, len(inside.above))
        if kind in _SEQUENCES:
            return kind(inside.parts(value))
        if kind is deque:
            return deque(inside.parts(value), value.maxlen)
        if kind is dict:
            return dict(zip(inside.parts(value), inside.parts(value.values()), strict=True))
        return inside.taken_apart(value)

    def parts(self, items: Iterable[Any]) -> list[Any]:
        """Copies items; what cannot be copied loses nothing if there is nothing else."""
        done, constants = [], []
        for item in items:
            try:
                done.append(self.copy(item))
            except Resource as error:
                if not error.constant:
                    raise
                constants.append(error)
        if constants:
            raise Resource(str(constants[0]), constant=not done)
        return done

    def taken_apart(self, value: Any) -> ObjectValue:
        """Takes an object apart; one that is not alone has to be complete, as it may have to be made."""
        member = objects.member(value)
        if member is not None:
            return member
        name, variables = objects.class_name(type(value)), objects.state_variables(value)
        if variables is not None:
            kept = [None if id(v) in self.foreign else self.copy(v) for v in variables]
            if not any(kept):
                raise Resource("a part of the model", constant=True)
            return ObjectValue(name, kept, partial=True)
        attributes = self.look_into(value)
        if attributes is None:
            raise Resource(type(value).__name__, constant=objects.is_constant(value))
        taken, lost = self._attributes(value, attributes)
        partial = len(taken) < len(attributes) or isinstance(value, keras.callbacks.Callback)
        done = ObjectValue(name, self._items(value), taken, partial=partial, lost=lost)
        if len(taken) < len(attributes) or any(map(self.copies.is_partial, taken.values())):
            self.copies.add_partial(done)
        return done

    def _attributes(
        self, value: Any, attributes: Mapping[str, Any]
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Copies the attributes of an object; returns also the names of those that are lost by it."""
        taken: dict[str, Any] = {}
        lost: list[str] = []
        for name, part in attributes.items():
            try:
                taken[name] = self._attribute(type(value), name, part)
            except Resource as error:
                if not self.alone:
                    raise Resource(f"a {type(value).__name__} with {error}") from error
                lost += [] if error.constant else [name]
                continue
            lost += [f"{name}.{inner}"[:_LONGEST_NAME] for inner in getattr(taken[name], "lost", ())]
        return taken, tuple(lost)

    def _attribute(self, kind: type, name: str, part: Any) -> Any:
        if not objects.keeps(kind, name):
            raise Resource(f"what hides {name!r} of its class")
        return self.copy(part)

    def _items(self, value: Any) -> Any:
        """Returns what an object holds besides its attributes, as the class of Python's that holds it."""
        base, content = objects.content_of(value)
        return content if base is object else replace(self, alone=False).copy(content)


def _copied_array(value: Any, copy_arrays: bool) -> Any:
    if isinstance(value, (np.str_, np.bytes_)):
        return value  # whose item has no size where the text is empty
    raw = value.dtype.kind == "V" and value.dtype.isbuiltin != 2  # which those of ml_dtypes are
    if raw or value.dtype.kind in "OT" or value.dtype.fields is not None or value.dtype.itemsize == 0:
        raise Resource(f"array of dtype {value.dtype}")
    if isinstance(value, np.generic):
        return value
    if type(value) is not np.ndarray:
        raise Resource(type(value).__name__)
    return value.copy() if copy_arrays else value


def _copied_tensor(value: Any) -> Any:
    if not isinstance(value, tf.Tensor) or not value.dtype.is_numpy_compatible or value.dtype == tf.string:
        raise Resource(f"tensor of {value.dtype}")
    return value


def is_variable(value: Any) -> bool:
    """Whether a value is a variable of Keras's or TensorFlow's."""
    return isinstance(value, (keras.Variable, tf.Variable))


def tf_variable(variable: Any) -> Any:
    """Returns the TensorFlow variable that a variable is."""
    return variable.value if isinstance(variable, keras.Variable) else variable


def standing_in(copy: Any) -> ObjectValue | None:
    """Returns an object in a copy that has to be there when it is put back, such as a metric, or None."""
    left, seen = [copy], set()
    while left:
        copy = left.pop()
        if id(copy) in seen:
            continue
        seen.add(id(copy))
        if isinstance(copy, ObjectValue):
            if copy.partial:
                return copy
            left += [copy.items, *copy.attributes.values()]
        elif isinstance(copy, dict):
            left += [*copy.keys(), *copy.values()]
        elif isinstance(copy, _CONTAINERS):
            left += copy
    return None
