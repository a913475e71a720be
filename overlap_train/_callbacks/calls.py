"""What a call in a callback's code does, and what comes back from it."""

from __future__ import annotations

import functools
import inspect
import logging
import sys
import types
import warnings
from collections.abc import Sequence
from typing import Any

import keras

from overlap_train._callbacks.attributes import Attributes, OfData, OfModel
from overlap_train._callbacks.doings import Doing
from overlap_train._callbacks.given import CALLABLE, Given, Known, asks
from overlap_train._callbacks.held import met
from overlap_train._callbacks.leads import is_apart, leads_on
from overlap_train._callbacks.vocabulary import (
    ASKED,
    MEASURES,
    PASSES,
    PURE_METHODS,
    READING,
    STANDARD_APART,
    STANDARD_LOOKS,
)
from overlap_train._inspection.code import Unclear
from overlap_train._inspection.origins import Origin, is_simple, origin_of

__all__ = ["Calls"]


class Calls(Attributes):
    """Follows calls as far as they may lead to the training."""

    def call(self, callee: Any, given: Sequence[Any], named: dict[str, Any]) -> Any:
        """Returns what a call gives, and notes what it does.

        Raises:
            Unclear: it cannot be told.
        """
        values = [*given, *named.values()]
        if isinstance(callee, OfModel):
            return self._call_model(callee.name, values)
        if isinstance(callee, OfData) or (isinstance(callee, Given) and callee is not Given.PART):
            return self._call_apart(values, pure=getattr(callee, "name", "") in PURE_METHODS)
        if not isinstance(callee, Known):
            raise Unclear
        return self._call_known(callee.value, given, named)

    def _call_known(self, function: Any, given: Sequence[Any], named: dict[str, Any]) -> Any:
        values = [*given, *named.values()]
        if isinstance(function, functools.partial):
            bound = [met(value) for value in function.args]
            held = function.keywords
            kept = {name: self.held(held, name, value, fixed=True) for name, value in held.items()}
            return self._call_known(function.func, [*bound, *given], {**kept, **named})
        if isinstance(function, types.MethodType):
            return self._call_known(function.__func__, [met(function.__self__), *given], named)
        if isinstance(function, types.FunctionType):
            return self._call_function(function, given, named)
        if isinstance(function, (type, types.BuiltinFunctionType)):
            return self._call_type_or_builtin(function, values)
        if is_apart(function):
            return self._call_apart(values)
        self.note(type(function), "__call__")
        method = inspect.getattr_static(type(function), "__call__", None)
        if not isinstance(method, types.FunctionType):
            raise Unclear
        return self._call_function(method, [Known(function), *given], named)

    def _call_function(
        self, function: types.FunctionType, given: Sequence[Any], named: dict[str, Any]
    ) -> Any:
        if function.__module__ != function.__globals__["__name__"] == "contextlib":  # a `contextmanager`
            function = function.__wrapped__  # type: ignore[attr-defined]
        values, origin = [*given, *named.values()], origin_of(function)
        if origin is Origin.LIBRARY and not (any(map(self._reaches, values)) or leads_on(function)):
            return self._call_apart(values)
        if function is logging.getLogger and not named:
            return self._logger(given)
        if origin is Origin.STANDARD:
            return self._call_standard(function.__globals__["__name__"], values)
        if origin is Origin.TRAINING and function.__name__.startswith("on_") and self._watches(given):
            self.does(Doing.ENDS)
            return Given.DATA
        if origin is Origin.TRAINING and not function.__module__.startswith("keras.src.callbacks."):
            if function.__name__ != "convert_to_numpy":
                raise Unclear
            self.does(Doing.LOOKS)
            return Given.DATA
        return self.run(function, given, named)

    def _call_type_or_builtin(self, function: Any, values: Sequence[Any]) -> Any:
        parts = any(value is Given.PART or isinstance(value, OfModel) for value in values)
        self.fails = True
        if function in (isinstance, issubclass):
            return self._check_type(values)
        if function in MEASURES:
            if any(asks(value, *ASKED.get(function, ())) for value in values):
                raise Unclear
            self.does(Doing.LOOKS if parts else Doing.NOTHING)
            return Given.DATA
        if function in PASSES:
            self._require_apart([value for value in values if value is not Given.PART])
            return Given.PART if parts else Given.DATA
        if function is print:
            self._write_to("stdout")
        if function in (print, open):
            return self._call_apart(values)
        holder = getattr(function, "__self__", None)
        if holder is not None and not isinstance(holder, types.ModuleType):
            return self._call_apart(values) if met(holder) is Given.DATA else self._fail()
        origin = origin_of(function)
        if isinstance(function, type) and issubclass(function, BaseException) and not _is_written(function):
            return self._call_apart(values)
        if origin is Origin.STANDARD:
            return self._call_standard(str(function.__module__), values)
        if origin is not Origin.LIBRARY:
            raise Unclear
        return self._call_apart(values)

    def _check_type(self, values: Sequence[Any]) -> Given:
        """Reads `isinstance` and `issubclass`, which a metaclass may answer."""
        for value in values:
            kind = value.value if isinstance(value, Known) else None
            if isinstance(kind, type) and type(kind) is not type and origin_of(kind) is Origin.USER:
                raise Unclear
            if asks(value, "__instancecheck__", "__subclasscheck__"):
                raise Unclear
        parts = any(value is Given.PART or isinstance(value, OfModel) for value in values)
        self.does(Doing.LOOKS if parts else Doing.NOTHING)
        return Given.ANSWER

    def _call_standard(self, module: str, values: Sequence[Any]) -> Any:
        name = module.split(".")[0]
        if name in STANDARD_LOOKS:
            self.does(STANDARD_LOOKS[name])
        elif name not in STANDARD_APART:
            raise Unclear
        elif name == "logging":
            self._require_apart([self._logger([])])
        elif name in ("warnings", "_warnings"):
            self.note(vars(warnings), "showwarning")
            if origin_of(warnings.showwarning) is Origin.USER:
                raise Unclear
            self._write_to("stderr")
        return self._call_apart(values)

    def _write_to(self, name: str) -> None:
        """Follows text to where it is written, such as to a stream of the user's in the place of `stdout`."""
        stream = vars(sys)[name]
        found = self.held(vars(sys), name, stream, fixed=False)
        if isinstance(found, Known) and origin_of(type(stream)) is Origin.USER:
            self.call(self.attribute(found, "write"), [Given.DATA], {})

    def _logger(self, given: Sequence[Any]) -> Any:
        """Reads `logging.getLogger`; a logger that does not exist yet will hand on to the root's handlers."""
        name = given[0].value if given and isinstance(given[0], Known) else None
        if given and not (name is None or isinstance(name, str)):
            raise Unclear
        self._write_to("stderr")  # where there is no handler
        known = logging.root.manager.loggerDict
        if not name or not isinstance(known.get(name), logging.Logger):
            self.note(known, name or "root")
            return self.held(vars(logging), "root", logging.root, fixed=False)
        return self.held(known, name, known[name], fixed=False)

    def _call_model(self, name: str, values: Sequence[Any]) -> Any:
        """Follows the call of a method of the model, or of what has been read from it."""
        self._require_apart(values)
        self.does(Doing.LOOKS)
        if name == "learning_rate":  # a schedule, called with a step
            return Given.DATA
        if name not in READING:
            raise Unclear
        return Given.DATA if READING[name] else Given.PART

    def _call_apart(self, values: Sequence[Any], *, pure: bool = False) -> Given:
        self._require_apart(values)
        self.fails = True
        self.does(Doing.NOTHING if pure else Doing.APART)
        return Given.DATA

    def _require_apart(self, values: Sequence[Any]) -> None:
        """Makes sure that nobody is handed what leads to the training."""
        for value in values:
            if isinstance(value, Known):
                if not _is_harmless(value.value):
                    raise Unclear
            elif not isinstance(value, (OfData, Given)) or value is Given.PART:
                raise Unclear

    def _watches(self, given: Sequence[Any]) -> bool:
        """Whether a hook is that of one of Keras's own callbacks that at most end the training."""
        owner = given[0].value if given and isinstance(given[0], Known) else None
        return type(owner) in self.watching and type(owner) is not keras.callbacks.Callback

    def _reaches(self, value: Any) -> bool:
        """Whether a value leads to the training."""
        if isinstance(value, Known):
            simple = is_simple(value.value) or isinstance(value.value, CALLABLE)
            return not simple and (isinstance(value.value, keras.callbacks.Callback) or leads_on(value.value))
        return value is Given.PART or isinstance(value, OfModel)

    def _fail(self) -> Any:
        raise Unclear


def _is_harmless(thing: Any) -> bool:
    """Whether an object can be handed to anybody: numbers, text, and what is of libraries alone."""
    if is_simple(thing):
        return True
    if isinstance(thing, (type, types.ModuleType)):
        return origin_of(thing) in (Origin.STANDARD, Origin.LIBRARY)
    return not isinstance(thing, keras.callbacks.Callback) and is_apart(thing)


def _is_written(kind: type) -> bool:
    """Whether making an object of a class runs code of the user's."""
    made = (inspect.getattr_static(kind, name, None) for name in ("__init__", "__new__"))
    return type(kind) is not type or any(
        isinstance(f, types.FunctionType) and origin_of(f) is Origin.USER
        for f in (getattr(m, "__func__", m) for m in made)
    )
