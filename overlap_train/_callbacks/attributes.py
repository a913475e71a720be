"""What the attributes are that a callback's code names, and what is relied upon of them."""

from __future__ import annotations

import inspect
import types
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras

from overlap_train._callbacks.doings import Doing
from overlap_train._callbacks.facts import Fact
from overlap_train._callbacks.given import Given, Known, asks
from overlap_train._callbacks.held import met
from overlap_train._callbacks.leads import is_apart
from overlap_train._callbacks.vocabulary import LEAVES, PLAIN_SPECIAL
from overlap_train._inspection.code import Unclear
from overlap_train._inspection.lookup import look_up, variables_of
from overlap_train._inspection.origins import Origin, is_simple, origin_of
from overlap_train._inspection.sources import assigned_in

__all__ = ["Attributes", "OfData", "OfModel", "plain"]


@dataclass(frozen=True)
class OfModel:
    """An attribute of the model, or of what has been read from it."""

    name: str


@dataclass(frozen=True)
class OfData:
    """An attribute of data."""

    name: str


def plain(value: Any) -> Any:
    """Returns a value without the name under which it was found."""
    if isinstance(value, OfModel):
        return Given.PART
    return Given.DATA if isinstance(value, OfData) else value


class Attributes(ABC):
    """Looks up what code names, and notes what has been found.

    Args:
        watching: classes of Keras's own whose hooks at most end the training.

        unfixed: names of attributes and variables whose values may be others when the code runs.

    Attributes:
        doing: what the code that has been read does.
        fails: whether it may raise an exception, such as one for a missing key.
        sets: names of the attributes that it sets.
        relied_on: names of attributes and variables whose present values have been relied upon.
    """

    def __init__(self, watching: tuple[Any, ...] = (), unfixed: frozenset[str] = frozenset()) -> None:
        self.watching = watching
        self.unfixed = unfixed
        self.doing = Doing.NOTHING
        self.fails = False
        self.sets: set[str] = set()
        self.relied_on: set[str] = set()
        self._facts: dict[tuple[int, str], Fact] = {}

    @abstractmethod
    def run(self, function: types.FunctionType, given: Sequence[Any], named: dict[str, Any]) -> Any:
        """Reads a function, called with values; returns what comes back."""

    @property
    def facts(self) -> tuple[Fact, ...]:
        """What has been found in objects and variables."""
        return tuple(self._facts.values())

    def note(self, owner: Any, *names: str) -> None:
        """Notes that what is found under names has been relied upon."""
        for name in names:
            self._facts.setdefault((id(owner), name), Fact(owner, name, look_up(owner, name)))

    def does(self, doing: Doing) -> None:
        """Notes that the code does this, too."""
        self.doing = max(self.doing, doing)

    def attribute(self, owner: Any, name: str) -> Any:
        """Returns what an attribute of a value is.

        Raises:
            Unclear: it cannot be told.
        """
        if owner is Given.PART:
            self.does(Doing.LOOKS)
            self.fails = True
            return Given.DATA if name in LEAVES else OfModel(name)
        if isinstance(owner, OfModel):
            return self.attribute(Given.PART, name)
        if not isinstance(owner, Known) or is_simple(owner.value):
            if name.startswith("__") and name not in PLAIN_SPECIAL:
                raise Unclear
            self.fails = True
            return OfData(name)
        if isinstance(owner.value, types.ModuleType):
            return self._of_module(owner.value, name)
        if isinstance(owner.value, keras.callbacks.Callback) and name in ("model", "_model", "params"):
            return self._params(owner.value) if name == "params" else Given.PART
        return self._of_object(owner.value, name)

    def _params(self, callback: keras.callbacks.Callback) -> Any:
        params = look_up(callback, "params")
        if not isinstance(params, dict):
            return OfData("params")
        return self.held(callback, "params", params, fixed=False)

    def _of_module(self, module: types.ModuleType, name: str) -> Any:
        if name not in vars(module):
            if origin_of(module) is Origin.LIBRARY:
                self.fails = True
                return Given.DATA
            raise Unclear
        return self.held(module.__dict__, name, vars(module)[name], fixed=False)

    def held(self, owner: Any, name: str, value: Any, *, fixed: bool) -> Any:
        """Returns what is found under a name, and notes that what it is has been relied upon.

        Raises:
            Unclear: it may be something else when the code runs, and is no number or text.
        """
        found = met(value, fixed=fixed and name not in self.unfixed)
        if isinstance(found, Known):
            simple = is_simple(found.value)
            if name in self.unfixed and not simple:
                raise Unclear
            if simple and not found.fixed:
                return found
            self.relied_on.add(name)
        self._facts.setdefault((id(owner), name), Fact.of(owner, name, value, found))
        return found

    def _of_object(self, owner: Any, name: str) -> Any:
        self.note(owner if isinstance(owner, type) else type(owner), "__getattribute__")
        live = variables_of(owner)
        found = inspect.getattr_static(type(owner) if not isinstance(owner, type) else owner, name, None)
        if asks(Known(owner), "__getattribute__") or _is_descriptor(found):
            raise Unclear
        if isinstance(found, property):
            self.note(type(owner), name)
            if not isinstance(found.fget, types.FunctionType):
                raise Unclear
            if is_apart(owner):
                self.fails = True
                return Given.DATA
            return self.run(found.fget, [Known(owner)], {})
        if isinstance(found, types.MemberDescriptorType) and not isinstance(owner, type):
            return self.held(
                owner, name, found.__get__(owner), fixed=name not in assigned_in(_class_of(owner))
            )
        if name in live and not isinstance(owner, type):
            return self.held(owner, name, live[name], fixed=name not in assigned_in(_class_of(owner)))
        if isinstance(found, (staticmethod, classmethod, types.FunctionType)):
            self.note(owner, name)
        if isinstance(found, staticmethod):
            return Known(found.__func__)
        if isinstance(found, classmethod):
            return Known(types.MethodType(found.__func__, owner if isinstance(owner, type) else type(owner)))
        if isinstance(found, types.FunctionType):
            return Known(found if isinstance(owner, type) else types.MethodType(found, owner))
        if is_apart(owner):
            self.fails = True
            return Given.DATA
        if found is None:
            raise Unclear
        return self.held(owner, name, found, fixed=name not in assigned_in(_class_of(owner)))


def _is_descriptor(found: Any) -> bool:
    """Whether something in a class computes what an attribute is, other than Python's own kinds."""
    own = (types.FunctionType, property, staticmethod, classmethod, type, types.BuiltinFunctionType)
    slots = (types.MemberDescriptorType, types.GetSetDescriptorType, types.MethodDescriptorType)
    known = (*own, *slots, types.WrapperDescriptorType, types.ClassMethodDescriptorType)
    return hasattr(type(found), "__get__") and not isinstance(found, known)


def _class_of(owner: Any) -> Any:
    return type(owner)
