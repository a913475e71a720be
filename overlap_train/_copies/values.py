"""What a checkpoint can hold of what Python objects hold: which values are plain, and their copies.

Plain are None, numbers, text, bytes, paths, dates, arrays and tensors, and lists, tuples, dicts, sets and
deques of plain values. Variables are copied by value, random generators by their state. An object is copied
by what its `get_state` returns, by its variables if it is one of Keras's or TensorFlow's, and else by its
attributes if the user has written its class. Everything else is not plain, and stays with the live object.
What two names hold in common has one copy.
"""

from __future__ import annotations

import collections
import datetime
import enum
import functools
import inspect
import logging
import pathlib
import re
import threading
import types
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from overlap_train._copies.generators import copied_generator, is_generator
from overlap_train._inspection.code import Origin, origin_of, variables_of

__all__ = [
    *("DEEPEST", "SIMPLE", "SPOKEN", "Copier", "NotPlainError", "ObjectValue", "Parts"),
    *("VariableValue", "base_of", "content_of", "is_code", "is_variable", "keeps", "parts_of"),
    *("Foreign", "model_variables", "places", "speaks", "spoken_by", "tf_variable"),
]

SIMPLE = frozenset(
    {type(None), bool, int, float, complex, str, bytes, type(pathlib.Path()), datetime.timedelta}
)
"""The types of values that nothing can change, and that need no copy."""

SPOKEN = "get_state()"
"""The name under which a copy has what an object's own `get_state` returned."""

DEEPEST = 60
"""Containers in each other: to copy, pack and put back more could exhaust the stack."""

Foreign = Callable[[], Collection[int]]
Parts = Callable[[Any], Mapping[str, Any] | None]

_BASES: tuple[type, ...] = (collections.OrderedDict, dict, list, set, collections.deque)
# Classes without memory of their own, whose objects are their attributes and what they hold as a container.
_OPEN = (*(object, types.SimpleNamespace, collections.defaultdict, collections.Counter, *_BASES),)
_ABSTRACT = ("abc", "collections", "collections.abc", "typing")
_HEAP_TYPE = 1 << 9
_STATEFUL = (keras.Layer, keras.metrics.Metric, keras.optimizers.Optimizer, tf.Module)
_CODE = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, functools.partial, type)
# What a training does not change: code, settings and tools. Nothing is lost if no checkpoint holds it.
_CONSTANT: tuple[Any, ...] = (
    *(*_CODE, types.MethodWrapperType, types.ModuleType, logging.Logger, logging.Handler, re.Pattern),
    *(type(threading.Lock()), type(threading.RLock()), tf.data.Dataset, tf.TensorSpec, tf.DType, range),
    *(tf.TensorShape, keras.losses.Loss, keras.optimizers.schedules.LearningRateSchedule),
    *(keras.KerasTensor, keras.initializers.Initializer, keras.regularizers.Regularizer),
    *(tf.types.experimental.GenericFunction, weakref.ref, types.GenericAlias),
)
# What of a class computes an attribute or is code, whatever an object has under its name.
_NO_ATTRIBUTES = (property, staticmethod, classmethod, types.GetSetDescriptorType)


class NotPlainError(Exception):
    """A value, or something in it, is not plain; if it is `constant`, nothing is lost by that."""

    def __init__(self, what: str, *, constant: bool = False) -> None:
        super().__init__(what)
        self.constant = constant


@dataclass(frozen=True, eq=False)
class VariableValue:
    """The value of a Keras or TensorFlow variable; it shares the variable's buffer."""

    tensor: tf.Tensor


@dataclass(frozen=True, eq=False)
class ObjectValue:
    """What an object held at one moment. It is put back into an object of its class that is in its place."""

    kind: str  # the name of its class
    # Those that are plain, or its variables by number.
    attributes: Mapping[str, Any] = field(default_factory=dict)
    items: Any = None  # what it holds as a container, or the name of a member of an enumeration
    lost: tuple[str, ...] = ()  # what is not plain and may change


class Copier:
    """Copies values; what several of them hold has one copy.

    `foreign` returns the `id` of each variable that is restored elsewhere, and `parts` what an object is made
    of by name, or None. A copy that is to be enough `alone` to make the value anew holds no objects, and a
    tensor for each variable. Objects that are `apart` are copied by themselves, such as the other callbacks.
    """

    def __init__(
        self,
        foreign: Foreign = frozenset,
        *,
        parts: Parts | None = None,
        copy_arrays: bool = True,
        alone: bool = False,
        apart: Iterable[Any] = (),
    ) -> None:
        self.copy_arrays = copy_arrays
        self._apart = frozenset(map(id, apart))
        self._list_foreign, self._parts, self._alone = foreign, parts or parts_of, alone
        self._copies: dict[int, tuple[Any, Any, int]] = {}  # with the value, so that its `id` stays its own
        self._above: set[int] = set()
        self._deepest = 0  # containers around what has been copied last

    @functools.cached_property
    def _foreign(self) -> Collection[int]:
        return self._list_foreign()

    def object(self, value: Any, parts: Mapping[str, Any]) -> ObjectValue:
        """Return what an object holds of the named parts; those that are not plain are left out.

        If it says itself what it remembers and that is not plain, this is a NotPlainError.
        """
        self._above.add(id(value))
        attributes: dict[str, Any] = {}
        lost: list[str] = []
        for name, part in parts.items():
            if name == SPOKEN:
                attributes[name] = spoken_by(value)
                continue
            try:
                attributes[name] = self._attribute(type(value), name, part)
            except NotPlainError as error:
                lost += [] if error.constant else [name]
            else:
                lost += [f"{name}.{inner}" for inner in getattr(attributes[name], "lost", ())]
        self._above.discard(id(value))
        base = base_of(type(value))
        items = None if base is object else self.copy(content_of(value))
        return ObjectValue(type(value).__name__, attributes, items, tuple(lost))

    def _attribute(self, kind: type, name: str, part: Any) -> Any:
        if not keeps(kind, name):
            raise NotPlainError(f"what hides {name!r} of its class", constant=is_code(part))
        return self.copy(part)

    def copy(self, value: Any) -> Any:
        """Return the copy of a value, or raise NotPlainError."""
        if type(value) in SIMPLE:
            return value
        if id(value) in self._apart:
            raise NotPlainError("what is copied by itself", constant=True)
        depth, outside = len(self._above), self._deepest
        _, known, height = self._copies.get(id(value), (None, None, 0))
        if depth + height >= DEEPEST:
            raise NotPlainError(f"a container in more than {DEEPEST} others")
        if known is None:
            if id(value) in self._above:  # an object that refers to one above it finds it there again
                raise NotPlainError("a container that holds itself", constant=type(value) not in _BASES)
            self._deepest = depth
            known = self._tried(value)
            height = self._deepest - depth
            self._copies[id(value)] = value, known, height
        self._deepest = max(outside, depth + height)
        return known

    def _tried(self, value: Any) -> Any:
        self._above.add(id(value))
        try:
            return self._copied(value, type(value))
        except (MemoryError, NotPlainError):
            raise
        except Exception as error:  # of a proxy whose object has gone, say
            raise NotPlainError(f"{type(value).__name__} that raises {type(error).__name__}") from error
        finally:
            self._above.discard(id(value))

    def _copied(self, value: Any, kind: type) -> Any:
        self._deepest = max(self._deepest, len(self._above))
        if kind in (list, tuple, set, frozenset) and SIMPLE.issuperset(map(type, value)):
            return kind(value)  # a history is long, and has nothing to look into
        if isinstance(value, (np.ndarray, np.generic)):
            return _copied_array(value, self.copy_arrays)
        if is_variable(value):
            return self._variable(value)
        if tf.is_tensor(value) and hasattr(value, "numpy"):
            return _copied_tensor(value)
        if is_generator(value):
            return copied_generator(value)
        if kind is datetime.datetime and type(value.tzinfo) in (type(None), datetime.timezone):
            return value
        if kind in (list, tuple):
            return kind(self._items(value))
        if kind is collections.deque:
            return collections.deque(self._items(value), value.maxlen)
        if kind in (set, frozenset):
            return kind(map(self._key, value))
        if kind is dict:
            return dict(zip(map(self._key, value), self._items(value.values()), strict=True))
        return self._object(value)

    def _variable(self, value: Any) -> Any:
        if id(value) in self._foreign:
            raise NotPlainError("a variable of the model", constant=True)
        content = tf_variable(value).read_value()
        return content if self._alone else VariableValue(content)

    def _items(self, items: Iterable[Any]) -> list[Any]:
        """Copy items; if all of them are constants, nothing is lost."""
        done, constants = [], []
        for item in items:
            try:
                done.append(self.copy(item))
            except NotPlainError as error:
                if not error.constant:
                    raise
                constants.append(error)
        if constants:
            raise NotPlainError(str(constants[0]), constant=not done)
        return done

    def _key(self, key: Any) -> Any:
        copy = self.copy(key)
        if isinstance(copy, ObjectValue):
            raise NotPlainError(f"a key of type {type(key).__name__}")
        return copy

    def _object(self, value: Any) -> ObjectValue:
        constant = isinstance(value, _CONSTANT)
        if self._alone or constant:
            raise NotPlainError(type(value).__name__, constant=constant)
        if isinstance(value, enum.Enum):
            return ObjectValue(type(value).__name__, items=value.name)
        parts = self._parts(value)
        if parts is None:
            raise NotPlainError(type(value).__name__)
        done = self.object(value, parts)
        if parts and not done.attributes and not done.lost and done.items is None:
            raise NotPlainError("a part of the model", constant=True)
        return done


def parts_of(value: Any) -> Mapping[str, Any] | None:
    """Return what an object is made of by name; None if that is not all it is.

    An object of a class with memory of its own, written in C, is more than that; so is one of a library's,
    which may hold what belongs to the process.
    """
    if speaks(value):
        return {SPOKEN: None}
    if isinstance(value, (keras.random.SeedGenerator, tf.random.Generator)):
        return {"0": value.state}
    if isinstance(value, _STATEFUL):
        return {str(number): variable for number, variable in enumerate(value.variables)}
    if not _is_open(type(value)):
        return None
    # What `Box[int]()` notes says nothing of the object.
    return {name: part for name, part in variables_of(value).items() if name != "__orig_class__"}


def speaks(value: Any) -> bool:
    """Whether an object says what it remembers, and takes it back."""
    return all(callable(getattr(value, name, None)) for name in ("get_state", "set_state"))


def spoken_by(value: Any, method: str = "get_state") -> Any:
    """Return a copy of what an object says that it remembers, from which that can be made anew."""
    return Copier(alone=True).copy(getattr(value, method)())


def _is_open(kind: Any) -> bool:
    """Whether objects of a class are their attributes, and what they hold as a container."""
    frozen = getattr(getattr(kind, "__dataclass_params__", None), "frozen", False)
    bases = [base for base in kind.__mro__ if base not in _OPEN]
    return kind is not object and not frozen and all(map(_adds_attributes, bases))


def _adds_attributes(kind: type) -> bool:
    written = origin_of(kind) is Origin.USER or kind.__module__ in _ABSTRACT
    return written and bool(kind.__flags__ & _HEAP_TYPE)


def keeps(kind: Any, name: str) -> bool:
    """Whether objects of a class may have a value under a name: it is not that of a method or a property."""
    found = inspect.getattr_static(kind, name, None)
    if isinstance(found, types.MemberDescriptorType):
        return True
    if name.startswith("__") or isinstance(found, _NO_ATTRIBUTES):
        return False
    return bool(kind.__dictoffset__) and not (callable(found) and hasattr(type(found), "__get__"))


def base_of(kind: type) -> Any:
    """Return the class of Python's that says what a class holds besides attributes: `object` for nothing."""
    return next((base for base in kind.__mro__ if base in _BASES), object)


def content_of(value: Any) -> Any:
    """Return what an object holds as a container, without calling methods of its class."""
    base = base_of(type(value))
    if base is collections.deque:
        return collections.deque(base.__iter__(value), value.maxlen)
    return dict(base.items(value)) if issubclass(base, dict) else base(base.__iter__(value))


def places(value: Any, label: str) -> collections.Counter[str]:
    """Count the variables and objects in a copy, by what holds them and their class.

    They come back only where there are as many in the resumed process.
    """
    found: collections.Counter[str] = collections.Counter()
    left, seen = [(label, value)], set()
    while left:
        label, value = left.pop()
        if type(value) in SIMPLE or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, VariableValue):
            found[label] += 1
        elif isinstance(value, ObjectValue):
            found[label] += value.items is not None or bool(value.attributes)
            left += [(f"{label}.{name}", part) for name, part in value.attributes.items()]
            left.append((label, value.items))
        elif isinstance(value, (list, tuple, collections.deque, dict)):
            left += [(label, part) for part in (value.values() if isinstance(value, dict) else value)]
    return found


def is_code(value: Any) -> bool:
    """Whether a value is a function or the like."""
    return isinstance(value, _CODE)


def is_variable(value: Any) -> bool:
    """Whether a value is a variable of Keras's or TensorFlow's."""
    return isinstance(value, (keras.Variable, tf.Variable))


def tf_variable(variable: Any) -> Any:
    """Return the TensorFlow variable that a variable is."""
    return variable.value if isinstance(variable, keras.Variable) else variable


def _copied_array(value: Any, copy_arrays: bool) -> Any:
    if isinstance(value, (np.str_, np.bytes_)):
        return value  # whose item has no size where the text is empty
    raw = value.dtype.kind == "V" and value.dtype.isbuiltin != 2  # which those of ml_dtypes are
    if raw or value.dtype.kind in "OT" or value.dtype.fields is not None or value.dtype.itemsize == 0:
        raise NotPlainError(f"array of dtype {value.dtype}")
    if isinstance(value, np.generic):
        return value
    if type(value) is not np.ndarray:
        raise NotPlainError(type(value).__name__, constant=not value.flags.writeable)  # such as a memmap
    return value.copy() if copy_arrays else value


def _copied_tensor(value: Any) -> Any:
    if not isinstance(value, tf.Tensor) or not value.dtype.is_numpy_compatible or value.dtype == tf.string:
        raise NotPlainError(f"tensor of {value.dtype}")
    return value


def model_variables(model: keras.Model | None) -> frozenset[int]:
    """Return the `id` of each variable of a model and of what it is compiled with; a snapshot has them."""
    optimizer, metrics = getattr(model, "optimizer", None), getattr(model, "metrics_variables", ())
    found = [*getattr(model, "variables", ()), *metrics, *getattr(optimizer, "variables", ())]
    return frozenset(map(id, [*found, *(variable.value for variable in found)]))
