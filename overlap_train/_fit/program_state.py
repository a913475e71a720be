"""The state of a user's program in Python and in variables: noted, and put back in its place.

Found by attributes, containers, closures and the global names in users' functions, from a model, callbacks
and data on. Nothing is copied apart, so whatever two of them share stays shared. Only what has changed is put
back. Objects of TensorFlow are left alone but for variables and the orders of datasets. On the training
thread, while nothing else runs.
"""

from __future__ import annotations

import collections
import functools
import io
import logging
import operator
import pickle
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from overlap_train._callbacks.generators import put_state, state_of
from overlap_train._callbacks.values import CONSTANT
from overlap_train._data.pass_state import noted_orders
from overlap_train._data.pipeline import captured_by, python_functions, reorders
from overlap_train._inspection.attributes import slots_of
from overlap_train._inspection.code import (
    Origin,
    content_of,
    function_of,
    is_simple,
    module_of,
    names_in,
    origin_of,
)
from overlap_train._snapshot import StateVariable

_MISSING = object()
_CONTAINERS = (list, tuple, dict, set, frozenset, collections.deque, types.MappingProxyType)
_CONSTANT = (*CONSTANT, types.CodeType, property)
_APART = (types.ModuleType, logging.Logger, logging.Handler)
_OF_CLASSES = ("_abc_impl", "__dict__", "__weakref__")


class ProgramState:
    """What could be reached from `roots`, and `variables`, as they are now.

    TypeError if something could not be put back, ValueError for a dataset whose orders could not.
    """

    def __init__(self, roots: Iterable[Any], variables: Iterable[StateVariable] = ()) -> None:
        self._variables: dict[int, tuple[StateVariable, tf.Tensor]] = {}
        self._undo: list[Callable[[], Any]] = []
        self._leaves: list[tuple[Any, bytes]] = []
        self._others: dict[int, Any] = {}  # by `id`, what takes the place of leaves that have changed
        self._visited: dict[int, Any] = {}  # references, so that no other object gets their `id`
        left = collections.deque((root, "the program") for root in roots)
        while left:
            thing, owner = left.popleft()
            if id(thing) in self._visited or is_simple(thing):
                continue
            self._visited[id(thing)] = thing
            parts = self._note(thing, owner)
            holder = type(thing).__name__ if _is_followed(type(thing)) else owner
            left += ((part, holder) for part in parts)
        for variable in variables:
            self._note_variable(variable)

    def put_back(self) -> None:
        """Put everything back; may be called any number of times."""
        for leaf, packed in self._leaves:
            if pickle.dumps(leaf) != packed:
                self._others[id(leaf)] = pickle.loads(packed)
        for undo in self._undo:
            undo()
        for variable, value in self._variables.values():
            variable.assign(value)

    def _note(self, thing: Any, owner: str) -> Iterable[Any]:
        """Note one object; return what it refers to."""
        kind: Any = type(thing)
        if kind in weakref.ProxyTypes or isinstance(thing, _APART):
            return ()
        if isinstance(thing, (keras.Variable, tf.Variable)):
            return self._note_any_variable(thing)
        if isinstance(thing, np.ndarray):
            return self._note_array(thing)
        if (generator := state_of(thing)) is not None:
            self._undo.append(functools.partial(put_state, thing, *generator))
            return ()
        if isinstance(thing, tf.data.Dataset):
            return self._note_dataset(thing)
        if isinstance(thing, types.FunctionType):
            return self._note_function(thing)
        if isinstance(thing, types.CellType):
            return self._note_cell(thing)
        if isinstance(thing, type):
            return self._note_class(thing) if origin_of(thing) is Origin.USER else ()
        if isinstance(thing, (types.MethodType, functools.partial)):
            return [
                getattr(thing, name, None) for name in ("__self__", "__func__", "func", "args", "keywords")
            ]
        parts = list(self._note_content(thing, kind))
        if isinstance(thing, (tf.Module, tf.random.Generator)):
            parts += getattr(thing, "variables", None) or [thing.state]
        if _is_followed(kind):
            parts += [kind, *self._note_attributes(thing, kind)]
        elif not issubclass(kind, _CONTAINERS):
            self._note_leaf(thing, owner)
        return parts

    def _note_leaf(self, thing: Any, owner: str) -> None:
        """Note an object of which only its own code knows what it holds."""
        lasts = isinstance(thing, _CONSTANT) or origin_of(type(thing)) is Origin.TRAINING
        if _is_written(thing) or (lasts and not isinstance(thing, Iterator)):
            return
        try:
            self._leaves.append((thing, pickle.dumps(thing)))
        except Exception:
            raise TypeError(
                f"verify puts all back behind each run, and cannot put back the {type(thing).__name__} of "
                f"{owner}; leave it out, or run overlap-train verify"
            ) from None

    def _note_any_variable(self, variable: Any) -> Iterable[Any]:
        if isinstance(variable, keras.Variable):
            if vars(variable).get("_value") is not None:
                self._note_variable(StateVariable.of_keras(variable))
            return self._note_attributes(variable, type(variable))
        for copy in getattr(variable, "values", (variable,)):
            self._note_variable(StateVariable(copy.name, (copy.handle,), copy.dtype, copy.shape))
        return ()

    def _note_variable(self, variable: StateVariable) -> None:
        if id(variable.handles[0]) not in self._variables:
            self._variables[id(variable.handles[0])] = variable, variable.read()

    def _note_array(self, array: Any) -> Iterable[Any]:
        if array.flags.writeable and not isinstance(array, np.memmap):
            saved = array.copy()
            self._undo.append(lambda: np.copyto(array, saved))
        return array.flat if array.dtype.hasobject else ()

    def _note_dataset(self, dataset: tf.data.Dataset) -> Iterable[Any]:
        if reorders(dataset):
            put_back = noted_orders(dataset)
            if put_back is None:
                raise ValueError(
                    "verify trains twice, and TensorFlow does not say where the draws of a Dataset.random "
                    "stand; leave out rerandomize_each_iteration, or run overlap-train verify"
                )
            self._undo.append(put_back)
        for variable in captured_by(dataset):
            self._note_variable(StateVariable.of_captured(variable))
        return python_functions(dataset)

    def _note_function(self, function: Any) -> Iterable[Any]:
        parts = [function.__closure__, function.__defaults__, function.__kwdefaults__]
        parts += self._note_dict(vars(function))
        if origin_of(function) is not Origin.USER:
            return parts
        names, spaces = [*names_in(function.__code__)], [function.__globals__]
        for space in spaces:
            for value in self._note_names(space, names):
                if not isinstance(value, types.ModuleType):
                    parts.append(value)
                elif origin_of(value) is Origin.USER and not any(vars(value) is each for each in spaces):
                    spaces.append(vars(value))
        return parts

    def _keep(self, read: Callable[[], list[Any]], write: Callable[[list[Any]], Any]) -> list[Any]:
        """Return what `read` returns, and have `write` put it back if it returns something else then."""
        saved = read()

        def undo() -> None:
            before = [self._others.get(id(value), value) for value in saved]
            now = read()
            if len(now) != len(before) or any(map(operator.is_not, now, before)):
                write(before)

        self._undo.append(undo)
        return saved

    def _note_names(self, space: dict[str, Any], names: Sequence[str]) -> Iterable[Any]:
        def write(values: list[Any]) -> None:
            for name, value in zip(names, values, strict=True):
                if value is _MISSING:
                    space.pop(name, None)
                else:
                    space[name] = value

        return self._keep(lambda: [space.get(name, _MISSING) for name in names], write)

    def _note_cell(self, cell: Any) -> Iterable[Any]:
        if not content_of(cell):
            return ()
        return self._keep(lambda: [*content_of(cell)], lambda value: setattr(cell, "cell_contents", *value))

    def _note_class(self, kind: type) -> Iterable[Any]:
        saved = {name: value for name, value in vars(kind).items() if name not in _OF_CLASSES}

        def undo() -> None:
            for name in vars(kind).keys() - saved.keys() - {*_OF_CLASSES}:
                delattr(kind, name)
            for name, value in saved.items():
                before = self._others.get(id(value), value)
                if vars(kind).get(name, _MISSING) is not before:
                    setattr(kind, name, before)

        self._undo.append(undo)
        members = [function_of(member) for member in saved.values()]
        functions = (m for m in members if isinstance(m, types.FunctionType))
        return [*kind.__bases__, *functions, *(m for m in members if not hasattr(type(m), "__get__"))]

    def _note_attributes(self, thing: Any, kind: Any) -> Iterable[Any]:
        parts = list(self._note_dict(thing.__dict__)) if hasattr(thing, "__dict__") else []
        for _, slot in slots_of(kind):
            with suppress(AttributeError):  # an empty slot
                parts += self._note_slot(thing, slot)
        return parts

    def _note_slot(self, thing: Any, slot: Any) -> Iterable[Any]:
        return self._keep(lambda: [slot.__get__(thing)], lambda value: slot.__set__(thing, *value))

    def _note_dict(self, content: dict[Any, Any]) -> Iterable[Any]:
        kind = collections.OrderedDict if isinstance(content, collections.OrderedDict) else dict

        def write(parts: list[Any]) -> None:
            count = len(parts) // 2
            kind.clear(content)
            kind.update(content, zip(parts[:count], parts[count:], strict=True))

        return self._keep(lambda: [*kind.keys(content), *kind.values(content)], write)

    def _note_content(self, thing: Any, kind: Any) -> Iterable[Any]:
        """Note what a container contains."""
        if issubclass(kind, dict):
            return self._note_dict(thing)
        if issubclass(kind, (tuple, frozenset)):
            return thing
        if issubclass(kind, types.MappingProxyType):
            return thing.values()
        if not issubclass(kind, (list, set, collections.deque)):
            return ()

        def write(parts: list[Any]) -> None:
            if issubclass(kind, list):
                thing[:] = parts  # TensorFlow's lists have their content elsewhere
                return
            thing.clear()
            (thing.update if issubclass(kind, set) else thing.extend)(parts)

        return self._keep(lambda: list(thing), write)


def _is_followed(kind: Any) -> bool:
    """Whether attributes are all that objects of a class hold, and may be set."""
    if module_of(kind).split(".")[0] == "keras" or issubclass(kind, (keras.Layer, keras.callbacks.Callback)):
        return not issubclass(kind, keras.KerasTensor)
    if origin_of(kind) is Origin.TRAINING or issubclass(kind, (types.FunctionType, type)):
        return False
    return bool(slots_of(kind) or kind.__dictoffset__)


def _is_written(thing: Any) -> bool:
    """Whether it is a file that can only be written to."""
    return isinstance(thing, io.IOBase) and not thing.closed and not thing.readable()
