"""What a checkpoint can hold of Python: which values are plain, and their copies.

Plain are None, numbers, text, bytes, paths, dates, arrays and tensors, and lists, tuples, dicts, sets and
deques of plain values. Variables are copied by value, random generators by their state. An object is copied
by what its `get_state` returns, or by its variables if it is one of Keras's or TensorFlow's. Everything else
is not plain, and stays with the live object. What two names share has one copy.
"""

from __future__ import annotations

import collections
import datetime
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

from overlap_train._copies.generators import GeneratorValue, copy_generator, is_generator

SIMPLE = frozenset(
    {type(None), bool, int, float, complex, str, bytes, type(pathlib.Path()), datetime.timedelta}
)
"""The types of immutable values, which need no copy."""

GET_STATE = "get_state()"
"""The name, among the attributes of a copy, of what an object's own `get_state` returned."""

DEEPEST = 60
"""The most containers in each other: to copy, pack and put back more could exhaust the stack."""

DICTS = (dict, collections.OrderedDict, collections.Counter, collections.defaultdict)
"""The types of dicts that are plain; the function of a `defaultdict` stays with the live one."""

Foreign = Callable[[], Collection[int]]
Parts = Callable[[Any], Mapping[str, Any] | None]

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
    lost: tuple[str, ...] = ()  # what is not plain and may change


class Copier:
    """Copies values; what several of them share has one copy.

    `foreign` returns the `id` of each variable that is restored elsewhere, and `parts` the parts of an object
    by name, or None. A copy that stands `alone`, from which the value can be made anew, holds no objects and
    no generators, and a tensor for each variable. Objects that are `apart` are copied by themselves, such as
    other callbacks.
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
        # By `id`: the value, which keeps its `id`, and its copy.
        self._copies: dict[int, tuple[Any, Any]] = {}
        self._depth = 0

    @functools.cached_property
    def _foreign(self) -> Collection[int]:
        return self._list_foreign()

    def object(self, value: Any, parts: Mapping[str, Any]) -> ObjectValue:
        """Return what an object holds of the named parts; those that are not plain are left out.

        If it says itself what it remembers and that is not plain, this is a NotPlainError.
        """
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
        return ObjectValue(type(value).__name__, attributes, tuple(lost))

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
        if self._depth >= DEEPEST:
            raise NotPlainError(f"a container in more than {DEEPEST} others")
        self._depth += 1
        try:
            copy = self._copy(value, type(value))
        except (MemoryError, NotPlainError):
            raise
        except Exception as error:  # of a proxy whose object has gone, say
            raise NotPlainError(f"{type(value).__name__} that raises {type(error).__name__}") from error
        finally:
            self._depth -= 1
        self._copies[id(value)] = value, copy
        return copy

    def _copy(self, value: Any, kind: Any) -> Any:
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
        if is_generator(value) and not self._alone:
            return copy_generator(value)
        if kind is datetime.datetime and type(value.tzinfo) in (type(None), datetime.timezone):
            return value
        if kind in (list, tuple):
            return kind(self._items(value))
        if kind is collections.deque:
            return collections.deque(self._items(value), value.maxlen)
        if kind in (set, frozenset):
            return kind(map(self._key, value))
        if kind in DICTS:
            items = dict(zip(map(self._key, value), self._items(value.values()), strict=True))
            return collections.defaultdict(None, items) if kind is collections.defaultdict else kind(items)
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
        if isinstance(copy, (ObjectValue, GeneratorValue)):
            raise NotPlainError(f"a key of type {type(key).__name__}")
        return copy

    def _object(self, value: Any) -> ObjectValue:
        name, is_constant = type(value).__name__, isinstance(value, _CONSTANT)
        parts = None if self._alone or is_constant else self._parts(value)
        if parts is None:
            raise NotPlainError(name, constant=is_constant)
        copy = self.object(value, parts)
        if parts and not copy.attributes and not copy.lost:
            raise NotPlainError("a part of the model", constant=True)
        return copy


def parts_of(value: Any) -> Mapping[str, Any] | None:
    """Return the parts of an object by name; None if nothing says what they are."""
    if has_get_state(value):
        return {GET_STATE: None}
    if isinstance(value, (keras.random.SeedGenerator, tf.random.Generator)):
        return {"0": value.state}
    if isinstance(value, _STATEFUL):
        return {str(number): variable for number, variable in enumerate(value.variables)}
    return None


def has_get_state(value: Any) -> bool:
    """Whether an object has `get_state` and `set_state`."""
    return all(callable(getattr(value, name, None)) for name in ("get_state", "set_state"))


def reported_state(value: Any, method: str = "get_state") -> Any:
    """Return a copy of what a method of an object returns, from which that can be made anew."""
    return Copier(alone=True).copy(getattr(value, method)())


def keeps(kind: Any, name: str) -> bool:
    """Whether objects of a class may have a value under a name: it is not that of a method or a property."""
    member = inspect.getattr_static(kind, name, None)
    if name.startswith("__") or isinstance(member, _NO_ATTRIBUTES):
        return False
    return not (callable(member) and hasattr(type(member), "__get__"))


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
