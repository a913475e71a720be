"""Objects of users' classes, taken apart into plain values and put together again.

An object whose class is written in Python is what its attributes are, and what it holds as a container. These
are put back into the object that is there, which is of the same class. Where there is none, one is made: only
of a class that the holder's own code can get hold of, or of a few of Python's, and without calling anything
of it. So a file decides on values and runs no code. What holds variables (a metric, another model) is never
made anew; its variables are assigned.
"""

from __future__ import annotations

import collections
import contextlib
import enum
import functools
import inspect
import logging
import re
import reprlib
import threading
import types
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf

from overlap_train._inspection.code import Unclear
from overlap_train._inspection.lookup import variables_of
from overlap_train._inspection.origins import Origin, origin_of
from overlap_train._inspection.reach import reached

__all__ = [
    "Classes",
    "NotPutBackError",
    "ObjectValue",
    "attributes_of",
    "base_of",
    "changes",
    "check_object",
    "check_objects",
    "class_for",
    "class_name",
    "comes_apart",
    "content_of",
    "fill",
    "is_constant",
    "keeps",
    "made",
    "member",
    "set_attributes",
    "state_variables",
]

Classes = Callable[[str], type | None]

_PYTHONS = (
    *(collections.OrderedDict, collections.Counter, collections.defaultdict, collections.ChainMap),
    *(collections.UserDict, collections.UserList, collections.UserString, types.SimpleNamespace),
)
_CONTAINERS: tuple[type, ...] = (
    *(collections.OrderedDict, collections.defaultdict, dict, list, set, collections.deque),
)
# A value of a subclass of these is made with what it is, and not changed.
_FIXED: tuple[type, ...] = (tuple, frozenset, str, bytes, int, float)
_FACTORIES = (
    *(bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset, collections.deque),
    *(collections.Counter, collections.OrderedDict),
)
_SIMPLE = frozenset((type(None), bool, int, float, str))
_HEAP_TYPE = 1 << 9
_ABSTRACT = ("abc", "collections", "collections.abc", "typing")
_STATEFUL = (
    *(keras.Layer, keras.metrics.Metric, keras.optimizers.Optimizer, keras.random.SeedGenerator),
    *(tf.Module, tf.random.Generator),
)
# What is the same whatever a training does: code, and settings.
_CONSTANT: tuple[Any, ...] = (
    *(types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.MethodWrapperType, type),
    *(types.ModuleType, functools.partial, logging.Logger, logging.Handler, re.Pattern),
    *(type(threading.Lock()), type(threading.RLock()), tf.data.Dataset, tf.TensorSpec, tf.DType),
    *(tf.TensorShape, keras.losses.Loss, keras.optimizers.schedules.LearningRateSchedule),
    *(keras.KerasTensor, keras.initializers.Initializer, keras.regularizers.Regularizer),
    *(tf.types.experimental.GenericFunction, weakref.ref, types.GenericAlias),
)
# What of a class computes an attribute or is code, whatever an object has under its name.
_NO_ATTRIBUTES = (property, staticmethod, classmethod, types.GetSetDescriptorType)


class NotPutBackError(Exception):
    """A value has nowhere to go, and what is there stays as it is; the text says why."""


@dataclass(frozen=True, eq=False)
class ObjectValue:
    """An object, taken apart.

    Attributes:
        kind: the module and the name of its class.
        items: what it holds as a container, what it is as a number or a text, the name of a member of an
            enumeration, or the values of its variables.
        attributes: by name.
        partial: whether some attributes could not be taken, so that it can be put back and not be made.
        lost: the names of those of them that may change.
    """

    kind: str
    items: Any = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    partial: bool = False
    lost: tuple[str, ...] = ()


def class_name(kind: type) -> str:
    """Returns what tells a class from others, in this process and the next."""
    return f"{kind.__module__}:{kind.__qualname__}"


def class_for(holder: Any) -> Classes:
    """Returns what finds the classes that an object's own code can get hold of, by `class_name`."""

    @functools.cache
    def found() -> dict[str, type]:
        own: list[type] = []
        with contextlib.suppress(Unclear):  # it holds too much to look through
            own = reached([holder], type)
        return {class_name(kind): kind for kind in [*own, *_PYTHONS]}

    return lambda name: found().get(name)


def is_constant(value: Any) -> bool:
    """Whether a value that cannot be copied loses nothing by that."""
    return isinstance(value, _CONSTANT)


def base_of(kind: type) -> type:
    """Returns the class of Python's that says what a class holds besides attributes: `object` for nothing."""
    return next((base for base in kind.__mro__ if base in (*_CONTAINERS, *_FIXED)), object)


def state_variables(value: Any) -> list[Any] | None:
    """Returns the variables that are the state of an object of Keras's or TensorFlow's; None for others."""
    if isinstance(value, (keras.random.SeedGenerator, tf.random.Generator)):
        return [value.state]
    return list(value.variables) if isinstance(value, _STATEFUL) else None


def attributes_of(value: Any) -> Mapping[str, Any] | None:
    """Returns the attributes that an object is made of; None if that is not all it is.

    An object of a class with memory of its own, written in C, is more than that; so is one of a library's,
    which may hold what belongs to the process.
    """
    kind = type(value)
    if kind in _PYTHONS:
        if isinstance(value, collections.defaultdict):
            factory = value.default_factory
            name = class_name(factory) if factory in _FACTORIES else ""
            return {"default_factory": None if factory is None else name}
        return dict(variables_of(value))
    if not comes_apart(kind):
        return None
    # What `Box[int]()` notes says nothing of the object.
    return {name: part for name, part in variables_of(value).items() if name != "__orig_class__"}


def comes_apart(kind: Any) -> bool:
    """Whether objects of a class are what their attributes are, and what they hold as a container."""
    if kind in _PYTHONS:
        return True
    bases = [base for base in kind.__mro__ if base not in (object, *_CONTAINERS, *_FIXED, *_PYTHONS)]
    return bool(bases) and origin_of(kind) is Origin.USER and all(map(_is_only_attributes, bases))


def member(value: Any) -> ObjectValue | None:
    """Returns what a member of an enumeration is; None for other values."""
    if not isinstance(value, enum.Enum):
        return None
    return ObjectValue(class_name(type(value)), value.value if isinstance(value, enum.Flag) else value.name)


def changes(value: Any) -> bool:
    """Whether an object can be changed; a number or a text with a class is made with all that it is."""
    return not isinstance(value, enum.Enum) and base_of(type(value)) not in _FIXED


def content_of(value: Any) -> tuple[type, Any]:
    """Returns the class of Python's that says what an object holds, and that content in it.

    The methods of an object's own class are not called.
    """
    base: Any = base_of(type(value))
    if base is collections.defaultdict or base is collections.OrderedDict:
        return dict, dict(base.items(value))
    if base is dict:
        return dict, dict(dict.items(value))
    if base is collections.deque:
        return base, collections.deque(base.__iter__(value), value.maxlen)
    if base in (list, set, tuple, frozenset):
        return base, base(base.__iter__(value))
    return base, None if base is object else base.__getnewargs__(value)[0]


def fill(target: Any, content: Any) -> None:
    """Gives a container a new content, by the methods of the class of Python's that it is based on."""
    base: Any = base_of(type(target))
    base.clear(target)
    if base in (list, collections.deque):
        base.extend(target, content)
    elif base is set:
        base.update(target, content)
    else:
        for key, item in content.items():
            base.__setitem__(target, key, item)


def made(value: ObjectValue, classes: Classes) -> Any:
    """Returns a new object, as yet without what it holds and without attributes if it can be changed.

    Raises:
        NotPutBackError: its class is not found, or it cannot be made.
        ValueError: the class has no such object.
    """
    kind: Any = classes(value.kind)
    if kind is None:
        raise NotPutBackError(f"its class {value.kind.replace(':', '.')} is not found")
    if issubclass(kind, enum.Enum):
        return _made_member(kind, value.items)
    if value.partial or issubclass(kind, _STATEFUL) or not comes_apart(kind):
        raise NotPutBackError(f"a {kind.__name__} cannot be made anew")
    if kind is collections.defaultdict:
        return collections.defaultdict(_factory(value.attributes.get("default_factory")))
    check_object(kind, value)
    base: Any = base_of(kind)
    try:
        if base in _FIXED:
            return base.__new__(kind, value.items)
        new = kind.__new__(kind) if kind in _PYTHONS else base.__new__(kind)
    except TypeError as error:  # of an abstract class, and of the class of a class
        raise NotPutBackError(f"a {kind.__name__} cannot be made anew") from error
    if base is collections.deque:
        base.__init__(new, (), getattr(value.items, "maxlen", None))
    return new


def _made_member(kind: Any, items: Any) -> Any:
    if isinstance(items, str) and items in kind.__members__:
        return kind.__members__[items]
    if type(items) is int and issubclass(kind, enum.Flag):
        return kind(items)
    raise ValueError(f"a {kind.__name__} has no member {reprlib.repr(items):.80}")


def set_attributes(target: Any, values: Mapping[str, Any]) -> None:
    """Sets attributes as they are stored, and calls nothing; `check_object` has accepted their names."""
    kind: Any = type(target)
    if kind is collections.defaultdict:
        return  # what it makes its values with is known since it was made
    for name, value in values.items():
        slot = inspect.getattr_static(kind, name, None)
        if isinstance(slot, types.MemberDescriptorType):
            slot.__set__(target, value)
        else:
            object.__getattribute__(target, "__dict__")[name] = value


def keeps(kind: Any, name: str) -> bool:
    """Whether objects of a class may have a value under a name: it is not that of a method or a property."""
    found = inspect.getattr_static(kind, name, None)
    if isinstance(found, types.MemberDescriptorType):
        return True
    is_code = callable(found) and hasattr(type(found), "__get__")
    if name.startswith("__") or is_code or isinstance(found, _NO_ATTRIBUTES):
        return False
    return bool(kind.__dictoffset__) and not issubclass(kind, enum.Enum)


def check_object(kind: Any, value: ObjectValue) -> None:
    """Makes sure that an object of a class can be what a value says.

    Raises:
        ValueError: an attribute is a method, a property or something of Python's own, or it holds otherwise.
    """
    for name in value.attributes:
        if not keeps(kind, name):
            raise ValueError(f"{name!r} is no attribute of a {kind.__name__}")
    if issubclass(kind, (enum.Enum, *_STATEFUL)):
        return  # whose members and variables are looked for
    if kind is collections.defaultdict:
        factory = value.attributes.get("default_factory")
        if not isinstance(factory, (str, type(None))):
            raise ValueError(f"a defaultdict with a factory of type {type(factory).__name__}")
    base = base_of(kind)
    content = dict if issubclass(base, dict) else type(None) if base is object else base
    if type(value.items) is not content:
        raise ValueError(f"a {kind.__name__} is made of a {content.__name__}")


def check_objects(value: Any, classes: Classes, seen: set[int] | None = None) -> None:
    """Makes sure that the objects in a value are what their classes allow, as far as these are found.

    Args:
        value: of a file.
        classes: finds them.
        seen: the `id` of what need not be looked at again, which several values may hold.

    Raises:
        ValueError: one is not, see `check_object`.
    """
    holders: Any = (*_CONTAINERS, tuple, frozenset, ObjectValue)
    left, seen = [value], set() if seen is None else seen
    while left:
        value = left.pop()
        if not isinstance(value, holders) or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, ObjectValue):
            kind: Any = classes(value.kind)
            if kind is not None:
                check_object(kind, value)
            left += [value.items, *value.attributes.values()]
        elif isinstance(value, dict):
            left += [*value.keys(), *value.values()]
        elif not _SIMPLE.issuperset(map(type, value)):
            left += value


def _is_only_attributes(kind: type) -> bool:
    """Whether a class adds nothing but attributes: one of the user's, or one that only says what it is."""
    if not kind.__flags__ & _HEAP_TYPE:
        return False
    return origin_of(kind) is Origin.USER or kind.__module__ in _ABSTRACT


def _factory(name: Any) -> Any:
    if name is None:
        return None
    known = {class_name(kind): kind for kind in _FACTORIES}
    if name not in known:
        raise NotPutBackError("the default_factory of a defaultdict is a custom function")
    return known[name]
