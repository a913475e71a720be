"""The part of Python objects that a checkpoint can hold: which values are plain, and their copies.

Plain are None, numbers, text, bytes, paths, dates, arrays and tensors, and lists, tuples, dicts, sets and
deques of plain values. Variables are copied by value, random generators by their state. An object is copied
by what its `get_state` returns, by its variables if it is one of Keras's or TensorFlow's, and else by its
attributes if the user has written its class. Everything else is not plain, and stays with the live object.
A value that two names share has one copy.
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

from overlap_train._copies.generators import copy_generator, is_generator
from overlap_train._inspection.code import Origin, origin_of, variables_of

SIMPLE = frozenset(
    {type(None), bool, int, float, complex, str, bytes, type(pathlib.Path()), datetime.timedelta}
)
"""The types of immutable values, which need no copy."""

GET_STATE = "get_state()"
"""The name, among the attributes of a copy, of what an object's own `get_state` returned."""

DEEPEST = 60
"""The most containers in each other: to copy, pack and put back more could exhaust the stack."""

Foreign = Callable[[], Collection[int]]
Parts = Callable[[Any], Mapping[str, Any] | None]

_BASES: tuple[type, ...] = (collections.OrderedDict, dict, list, set, collections.deque)
# Classes without memory of their own, whose objects are their attributes and what they hold as a container.
_OPEN = (*(object, types.SimpleNamespace, collections.defaultdict, collections.Counter, *_BASES),)
_ABSTRACT = ("abc", "collections", "collections.abc", "typing")
_HEAP_TYPE = 1 << 9
_STATEFUL = (keras.Layer, keras.metrics.Metric, keras.optimizers.Optimizer, tf.Module)
_CODE = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, functools.partial, type)
# Code, settings and tools, which a training does not change: nothing is lost if no checkpoint holds them.
_CONSTANT: tuple[Any, ...] = (
    *(*_CODE, types.MethodWrapperType, types.ModuleType, logging.Logger, logging.Handler, re.Pattern),
    *(type(threading.Lock()), type(threading.RLock()), tf.data.Dataset, tf.TensorSpec, tf.DType, range),
    *(tf.TensorShape, keras.losses.Loss, keras.optimizers.schedules.LearningRateSchedule),
    *(keras.KerasTensor, keras.initializers.Initializer, keras.regularizers.Regularizer),
    *(tf.types.experimental.GenericFunction, weakref.ref, types.GenericAlias),
)
# Members of a class that hide an attribute of the object.
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
    """Copies values; what several of them share has one copy.

    `foreign` returns the `id` of each variable that is restored elsewhere, and `parts` the parts of an object
    by name, or None. A copy that stands `alone`, from which the value can be made anew, holds no objects, and
    a tensor for each variable. Objects that are `apart` are copied by themselves, such as other callbacks.
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
        self._copies: dict[
            int, tuple[Any, Any]
        ] = {}  # by `id`: the value, which keeps its `id`, and its copy
        self._above: set[int] = set()  # what holds the value that is being copied

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
            if name == GET_STATE:
                attributes[name] = reported_state(value)
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
        if id(value) in self._copies:
            return self._copies[id(value)][1]
        if len(self._above) >= DEEPEST:
            raise NotPlainError(f"a container in more than {DEEPEST} others")
        if id(value) in self._above:  # an object that refers to one above it finds it there again
            raise NotPlainError("a container that holds itself", constant=type(value) not in _BASES)
        copy = self._copy_guarded(value)
        self._copies[id(value)] = value, copy
        return copy

    def _copy_guarded(self, value: Any) -> Any:
        self._above.add(id(value))
        try:
            return self._copy(value, type(value))
        except (MemoryError, NotPlainError):
            raise
        except Exception as error:  # of a proxy whose object has gone, say
            raise NotPlainError(f"{type(value).__name__} that raises {type(error).__name__}") from error
        finally:
            self._above.discard(id(value))

    def _copy(self, value: Any, kind: type) -> Any:
        if kind in (list, tuple, set, frozenset) and SIMPLE.issuperset(map(type, value)):
            return kind(value)  # a history is long, and has nothing to look into
        if isinstance(value, (np.ndarray, np.generic)):
            return _copy_array(value, self.copy_arrays)
        if is_variable(value):
            return self._variable(value)
        if tf.is_tensor(value) and hasattr(value, "numpy"):
            if isinstance(value, tf.Tensor) and value.dtype.is_numpy_compatible and value.dtype != tf.string:
                return value
            raise NotPlainError(f"tensor of {value.dtype}")
        if is_generator(value):
            return copy_generator(value)
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
        copies, constant = [], None
        for item in items:
            try:
                copies.append(self.copy(item))
            except NotPlainError as error:
                if not error.constant:
                    raise
                constant = constant or error
        if constant is not None:
            raise NotPlainError(str(constant), constant=not copies)
        return copies

    def _key(self, key: Any) -> Any:
        copy = self.copy(key)
        if isinstance(copy, ObjectValue):
            raise NotPlainError(f"a key of type {type(key).__name__}")
        return copy

    def _object(self, value: Any) -> ObjectValue:
        name, is_constant = type(value).__name__, isinstance(value, _CONSTANT)
        if self._alone or is_constant:
            raise NotPlainError(name, constant=is_constant)
        if isinstance(value, enum.Enum):
            return ObjectValue(name, items=value.name)
        parts = self._parts(value)
        if parts is None:
            raise NotPlainError(name)
        copy = self.object(value, parts)
        if parts and not copy.attributes and not copy.lost and copy.items is None:
            raise NotPlainError("a part of the model", constant=True)
        return copy


def parts_of(value: Any) -> Mapping[str, Any] | None:
    """Return the parts of an object by name; None if it is more than these.

    An object is more if its class is written in C and has memory of its own, or is a library's, whose objects
    may hold what belongs to the process.
    """
    if has_get_state(value):
        return {GET_STATE: None}
    if isinstance(value, (keras.random.SeedGenerator, tf.random.Generator)):
        return {"0": value.state}
    if isinstance(value, _STATEFUL):
        return {str(number): variable for number, variable in enumerate(value.variables)}
    if not _is_open(type(value)):
        return None
    # `Box[int]()` sets this one, which says nothing of the object.
    return {name: part for name, part in variables_of(value).items() if name != "__orig_class__"}


def has_get_state(value: Any) -> bool:
    """Whether an object has `get_state` and `set_state`."""
    return all(callable(getattr(value, name, None)) for name in ("get_state", "set_state"))


def reported_state(value: Any, method: str = "get_state") -> Any:
    """Return a copy of what a method of an object returns, from which that can be made anew."""
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
    member = inspect.getattr_static(kind, name, None)
    if isinstance(member, types.MemberDescriptorType):
        return True
    if name.startswith("__") or isinstance(member, _NO_ATTRIBUTES):
        return False
    return bool(kind.__dictoffset__) and not (callable(member) and hasattr(type(member), "__get__"))


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
    counts: collections.Counter[str] = collections.Counter()
    waiting, ids = [(label, value)], set()
    while waiting:
        label, value = waiting.pop()
        if type(value) in SIMPLE or id(value) in ids:
            continue
        ids.add(id(value))
        if isinstance(value, VariableValue):
            counts[label] += 1
        elif isinstance(value, ObjectValue):
            counts[label] += value.items is not None or bool(value.attributes)
            waiting += [(f"{label}.{name}", part) for name, part in value.attributes.items()]
            waiting.append((label, value.items))
        elif isinstance(value, (list, tuple, collections.deque, dict)):
            waiting += [(label, part) for part in (value.values() if isinstance(value, dict) else value)]
    return counts


def is_code(value: Any) -> bool:
    """Whether a value is a function or the like."""
    return isinstance(value, _CODE)


def is_variable(value: Any) -> bool:
    """Whether a value is a variable of Keras's or TensorFlow's."""
    return isinstance(value, (keras.Variable, tf.Variable))


def tf_variable(variable: Any) -> Any:
    """Return the TensorFlow variable that a variable is."""
    return variable.value if isinstance(variable, keras.Variable) else variable


def _copy_array(value: Any, copy_arrays: bool) -> Any:
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


def model_variables(model: keras.Model | None) -> frozenset[int]:
    """Return the `id` of each variable of a model and of what it is compiled with; a snapshot has them."""
    optimizer, metrics = getattr(model, "optimizer", None), getattr(model, "metrics_variables", ())
    variables = [*getattr(model, "variables", ()), *metrics, *getattr(optimizer, "variables", ())]
    return frozenset(map(id, [*variables, *(variable.value for variable in variables)]))
