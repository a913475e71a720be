"""What a checkpoint can hold of Python: which values are plain, and their copies.

Plain are None, numbers, text, bytes, paths, dates, arrays and tensors, and lists, tuples, dicts, sets and
deques of plain values. Variables are copied by value, random generators by their state. An object is copied
by what its `get_state` returns, or by its variables if it is one of Keras's or TensorFlow's. Everything else
is not plain, and stays with the live object.

A copy is a tree of JSON with arrays in it. In it None, bool, int, float and str stand for themselves. Any
other value is a dict whose first entry names its kind: `{"tuple": […]}`, `{"dict": [[key, value], …]}` or
`{"array": array}`. Integers of more digits than JSON takes are written in base 16, and long lists of numbers
as arrays. What two names share has one copy, with an "id"; a second place of it is `{"again": id}`.
"""

from __future__ import annotations

import collections
import datetime
import functools
import inspect
import itertools
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

from overlap_train._callbacks.generators import state_of

GET_STATE = "get_state()"
"""The name, among the attributes of a copy, of what an object's own `get_state` returned."""

DEEPEST = 60
"""The most containers in each other: to copy and put back more could exhaust the stack."""

DICTS = (dict, collections.OrderedDict, collections.Counter, collections.defaultdict)
"""The types of dicts that are plain; the function of a `defaultdict` stays with the live one."""

# Immutable values: their types, how they are written, and how they are read.
TEXTS: Mapping[str, tuple[type, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "bytes": (bytes, bytes.hex, bytes.fromhex),
    "complex": (complex, lambda value: [value.real, value.imag], lambda parts: complex(*parts)),
    "path": (type(pathlib.Path()), str, pathlib.Path),
    "timedelta": (
        datetime.timedelta,
        lambda value: [value.days, value.seconds, value.microseconds],
        lambda parts: datetime.timedelta(*parts),
    ),
}

# Python's text of longer integers may be limited to 640 digits, and is by default to 4300.
_LONGEST_INT_BITS = 2000
# A list of more numbers is an array: the losses of a million batches would be most of the JSON.
_SHORT_LIST = 256

Node = Any  # of a tree
Foreign = Callable[[], Collection[int]]
Parts = Callable[[Any], Mapping[str, Any] | None]

_STATEFUL = (keras.Layer, keras.metrics.Metric, keras.optimizers.Optimizer, tf.Module)
_CODE = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, functools.partial, type)
# Code, settings and tools, which a training does not change: nothing is lost if no checkpoint holds them.
CONSTANT: tuple[Any, ...] = (
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
class ObjectValue:
    """What an object held at one moment. It is put back into an object of its class that is in its place."""

    kind: str  # the name of its class
    attributes: Mapping[str, Node] = field(default_factory=dict)  # that are plain, or its variables by number
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
        self._copies: dict[int, tuple[Any, Node]] = {}
        self._numbers = itertools.count()
        self._depth = 0

    @functools.cached_property
    def _foreign(self) -> Collection[int]:
        return self._list_foreign()

    def object(self, value: Any, parts: Mapping[str, Any]) -> ObjectValue:
        """Return what an object holds of the named parts; those that are not plain are left out.

        If it says itself what it remembers and that is not plain, this is a NotPlainError.
        """
        attributes: dict[str, Node] = {}
        lost: list[str] = []
        for name, part in parts.items():
            if name == GET_STATE:
                attributes[name] = self.reported(value, "get_state")
                continue
            known = len(self._copies)
            try:
                if not keeps(type(value), name):
                    what = f"what hides {name!r} of its class"
                    raise NotPlainError(what, constant=is_code(part))
                attributes[name] = node = self.copy(part)
            except NotPlainError as error:
                while len(self._copies) > known:  # nothing else may name what is in it
                    self._copies.popitem()
                lost += [] if error.constant else [name]
            else:
                of_object = node.get("object") if isinstance(node, dict) else None
                lost += [f"{name}.{inner}" for inner in of_object[2]] if of_object else []
        return ObjectValue(type(value).__name__, attributes, tuple(lost))

    def reported(self, value: Any, method: str) -> Node:
        """Return a copy of what a method of an object returns, from which that can be made anew."""
        copier = Copier(alone=True)
        copier._numbers = self._numbers
        return copier.copy(getattr(value, method)())

    def copy(self, value: Any) -> Node:
        """Return the copy of a value, or raise NotPlainError."""
        kind = type(value)
        if value is None or kind in (bool, float, str):
            return value
        if kind is int:
            return value if value.bit_length() <= _LONGEST_INT_BITS else {"int": hex(value)}
        if id(value) in self._apart:
            raise NotPlainError("what is copied by itself", constant=True)
        if id(value) in self._copies:
            return {"again": self._copies[id(value)][1].setdefault("id", next(self._numbers))}
        if self._depth >= DEEPEST:
            raise NotPlainError(f"a container in more than {DEEPEST} others")
        self._depth += 1
        try:
            copy = self._copy(value, kind)
        except (MemoryError, NotPlainError):
            raise
        except Exception as error:  # of a proxy whose object has gone, say
            raise NotPlainError(f"{kind.__name__} that raises {type(error).__name__}") from error
        finally:
            self._depth -= 1
        self._copies[id(value)] = value, copy
        return copy

    def _copy(self, value: Any, kind: Any) -> Node:
        for name, (of_text, write, _) in TEXTS.items():
            if kind is of_text:
                return {name: write(value)}
        if isinstance(value, (np.ndarray, np.generic)):
            return _copy_array(value, self.copy_arrays)
        if is_variable(value):
            if id(value) in self._foreign:
                raise NotPlainError("a variable of the model", constant=True)
            return {"tensor" if self._alone else "variable": tf_variable(value).read_value()}
        if tf.is_tensor(value) and hasattr(value, "numpy"):
            if isinstance(value, tf.Tensor) and value.dtype.is_numpy_compatible and value.dtype != tf.string:
                return {"tensor": value}
            raise NotPlainError(f"tensor of {value.dtype}")
        generator = None if self._alone else state_of(value)
        if generator is not None:
            return {"generator": [generator[0], self.copy(generator[1])]}
        if kind is datetime.datetime and type(value.tzinfo) in (type(None), datetime.timezone):
            return {"datetime": value.isoformat()}
        if kind is ObjectValue:
            return {"state": [value.kind, [*map(list, value.attributes.items())], list(value.lost)]}
        return self._container(value, kind)

    def _container(self, value: Any, kind: Any) -> Node:
        kinds = set(map(type, value)) if kind is list else set()
        if len(kinds) == 1 and len(value) > _SHORT_LIST:
            if kinds == {float}:
                return {"floats": np.array(value, np.float64)}
            if kinds == {int} and -(1 << 63) <= min(value) <= max(value) < 1 << 63:
                return {"ints": np.array(value, np.int64)}
        if kinds and kinds <= {str, float, bool, type(None)}:
            return {"list": value.copy()}  # names of files may be many, and have nothing to look into
        if kind in (list, tuple):
            return {kind.__name__: self._items(value)}
        if kind is collections.deque:
            return {"deque": [value.maxlen, self._items(value)]}
        if kind in (set, frozenset):  # in a fixed order, so that equal ones are written alike
            members = sorted(value, key=lambda member: (type(member).__name__, repr(member)))
            return {kind.__name__: [*map(self._key, members)]}
        if kind in DICTS:
            keys = [*map(self._key, value)]
            return {kind.__name__: [*map(list, zip(keys, self._items(value.values()), strict=True))]}
        return self._object(value)

    def _items(self, items: Iterable[Any]) -> list[Node]:
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

    def _key(self, key: Any) -> Node:
        copy = self.copy(key)
        if isinstance(copy, dict) and not copy.keys().isdisjoint(("object", "generator", "variable")):
            raise NotPlainError(f"a key of type {type(key).__name__}")
        return copy

    def _object(self, value: Any) -> Node:
        name, is_constant = type(value).__name__, isinstance(value, CONSTANT)
        parts = None if self._alone or is_constant else self._parts(value)
        if parts is None:
            raise NotPlainError(name, constant=is_constant)
        copy = self.object(value, parts)
        if parts and not copy.attributes and not copy.lost:
            raise NotPlainError("a part of the model", constant=True)
        return {"object": [copy.kind, [*map(list, copy.attributes.items())], list(copy.lost)]}


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


def _copy_array(value: Any, copy_arrays: bool) -> Node:
    # The item of an empty text has no size, unlike the array in which it is stored.
    array = np.asarray(value) if isinstance(value, np.generic) else value
    raw = array.dtype.kind == "V" and array.dtype.isbuiltin != 2  # which those of ml_dtypes are
    if raw or array.dtype.kind in "OT" or array.dtype.fields is not None or array.dtype.itemsize == 0:
        raise NotPlainError(f"array of dtype {array.dtype}")
    if isinstance(value, np.generic):
        return {"scalar": array}
    if type(value) is not np.ndarray:
        raise NotPlainError(type(value).__name__, constant=not value.flags.writeable)  # such as a memmap
    return {"array": value.copy() if copy_arrays else value}


def model_variables(model: keras.Model | None) -> frozenset[int]:
    """Return the `id` of each variable of a model and of what it is compiled with; a snapshot has them."""
    optimizer, metrics = getattr(model, "optimizer", None), getattr(model, "metrics_variables", ())
    variables = [*getattr(model, "variables", ()), *metrics, *getattr(optimizer, "variables", ())]
    return frozenset(map(id, [*variables, *(variable.value for variable in variables)]))
