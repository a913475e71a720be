"""Reads the expressions of a callback's code: what their values are, and what it takes to have them."""

from __future__ import annotations

import ast
import builtins
import types
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import keras

from overlap_train._callbacks.calls import Calls, plain
from overlap_train._callbacks.doings import Doing
from overlap_train._callbacks.origins import SIMPLE, Given, Known, Origin, Unclear, asks, met, origin_of
from overlap_train._callbacks.sources import Definition

__all__ = ["Expressions", "Frame", "Inner", "either", "item_of", "merged", "truth"]

_MOST_STEPS = 20_000
UNCLEAR = object()
"""Stands for a variable that may be one of several things."""


@dataclass
class Frame:
    """One call that is being read.

    Attributes:
        function: whose globals its names are looked up in.
        names: its variables.
        returned: what it may return.
    """

    function: types.FunctionType
    names: dict[str, Any]
    returned: list[Any] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Inner:
    """A function that is defined inside another one."""

    node: Definition
    frame: Frame


class Expressions(Calls):
    """Reads expressions."""

    _steps = 0

    @abstractmethod
    def run_node(self, node: Definition, frame: Frame) -> Any:
        """Reads the body of a function; returns what comes back."""

    def step(self) -> None:
        """Counts what is read.

        Raises:
            Unclear: it is too much.
        """
        self._steps += 1
        if self._steps > _MOST_STEPS:
            raise Unclear

    def value(self, node: ast.expr, frame: Frame) -> Any:
        self.step()
        if isinstance(node, ast.Constant):
            return Known(node.value)
        if isinstance(node, ast.Name):
            return self._name(node.id, frame)
        if isinstance(node, ast.Attribute):
            return self.attribute(self.value(node.value, frame), node.attr)
        if isinstance(node, ast.Call):
            return self._call(node, frame)
        if isinstance(node, ast.BoolOp):
            return self._bool(node, frame)
        if isinstance(node, ast.Compare):
            return self._compare(node, frame)
        if isinstance(node, ast.UnaryOp):
            known = self.condition(node.operand, frame)
            return Known(not known) if isinstance(node.op, ast.Not) and known is not None else Given.DATA
        if isinstance(node, ast.IfExp):
            known = self.condition(node.test, frame)
            ways = [node.body, node.orelse] if known is None else [node.body if known else node.orelse]
            return either([plain(self.value(way, frame)) for way in ways])
        if isinstance(node, ast.Lambda):
            return Inner(node, frame)
        if isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)):
            return self._comprehension(node, frame)
        if isinstance(node, ast.NamedExpr):
            frame.names[node.target.id] = plain(self.value(node.value, frame))
            return frame.names[node.target.id]
        return self._composed(node, frame)

    def _composed(self, node: ast.expr, frame: Frame) -> Any:
        """Reads what is made of values only: arithmetic, containers, text, items."""
        kinds = (ast.BinOp, ast.Dict, ast.List, ast.Tuple, ast.Set, ast.Subscript, ast.Slice, ast.JoinedStr)
        if not isinstance(node, (*kinds, ast.FormattedValue, ast.Starred)):
            raise Unclear
        parts = [n for n in ast.iter_child_nodes(node) if isinstance(n, ast.expr)]
        values = [plain(self.value(part, frame)) for part in parts]
        self._require_apart([value for value in values if value is not Given.PART])
        if not any(value is Given.PART for value in values):
            return Given.DATA
        self.does(Doing.LOOKS)
        return Given.DATA if isinstance(node, (ast.JoinedStr, ast.FormattedValue)) else Given.PART

    def _name(self, name: str, frame: Frame) -> Any:
        if name in frame.names:
            if frame.names[name] is UNCLEAR:
                raise Unclear
            return frame.names[name]
        if name in frame.function.__code__.co_varnames:
            raise Unclear
        function = frame.function
        if name in function.__code__.co_freevars:
            cell = (function.__closure__ or ())[function.__code__.co_freevars.index(name)]
            try:
                return met(cell.cell_contents, fixed=False)
            except ValueError:
                raise Unclear from None
        if name in function.__globals__:
            return met(function.__globals__[name], fixed=False)
        if hasattr(builtins, name):
            return Known(getattr(builtins, name))
        raise Unclear

    def _call(self, node: ast.Call, frame: Frame) -> Any:
        if isinstance(node.func, ast.Attribute) and _is_super(node.func.value):
            return self._call_super(node, node.func.attr, frame)
        callee = self.value(node.func, frame)
        given, named = self._arguments(node, frame)
        if isinstance(callee, Known) and callee.value is getattr:
            return self._getattr(node, given, frame)
        if isinstance(callee, Inner):
            return self._call_inner(callee, given, named)
        return self.call(callee, given, named)

    def _getattr(self, node: ast.Call, given: Sequence[Any], frame: Frame) -> Any:
        name = given[1].value if len(given) > 1 and isinstance(given[1], Known) else None
        if not isinstance(name, str):
            raise Unclear
        if isinstance(given[0], Known) and len(given) > 2 and not hasattr(given[0].value, name):
            return given[2]
        found = plain(self.attribute(given[0], name))
        return found if len(given) < 3 else either([found, given[2]])

    def _arguments(self, node: ast.Call, frame: Frame) -> tuple[list[Any], dict[str, Any]]:
        given: list[Any] = []
        for argument in node.args:
            if not isinstance(argument, ast.Starred):
                given.append(plain(self.value(argument, frame)))
                continue
            several = self.value(argument.value, frame)
            if not isinstance(several, tuple):
                raise Unclear
            given.extend(several)
        named: dict[str, Any] = {}
        for keyword in node.keywords:
            value = plain(self.value(keyword.value, frame))
            named |= value if isinstance(value, dict) else {keyword.arg or "**": value}
        return given, named

    def condition(self, node: ast.expr, frame: Frame) -> bool | None:
        """Reads what is asked whether it is true; returns whether it is, or None if that cannot be told."""
        return self._truth(self.value(node, frame))

    def _truth(self, value: Any) -> bool | None:
        if plain(value) is Given.PART:
            self.does(Doing.LOOKS)
        if asks(value, "__bool__", "__len__"):
            raise Unclear
        return truth(value)

    def _bool(self, node: ast.BoolOp, frame: Frame) -> Any:
        ends = isinstance(node.op, ast.Or)  # with the first that is true
        values = []
        for part in node.values:
            values.append(plain(self.value(part, frame)))
            known = self._truth(values[-1])
            if known is ends:
                break
            if known is not None and part is not node.values[-1]:
                values.pop()
        return either(values)

    def _compare(self, node: ast.Compare, frame: Frame) -> Any:
        values = [plain(self.value(part, frame)) for part in (node.left, *node.comparators)]
        if Given.PART in values:
            self.does(Doing.LOOKS)
        kind = type(node.ops[0])
        if len(node.ops) == 1 and kind in (ast.Is, ast.IsNot):
            known = _identical(*values)
            return Given.DATA if known is None else Known(known is (kind is ast.Is))
        self._require_apart([value for value in values if value is not Given.PART])
        if len(node.ops) == 1 and kind in (ast.Eq, ast.NotEq):
            known = _equal(*values)
            return Given.DATA if known is None else Known(known is (kind is ast.Eq))
        return Given.DATA

    def _comprehension(
        self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp, frame: Frame
    ) -> Any:
        inner = Frame(frame.function, dict(frame.names))
        for generator in node.generators:
            items = item_of(plain(self.value(generator.iter, inner)))
            for name in ast.walk(generator.target):
                if isinstance(name, (ast.Attribute, ast.Subscript)):
                    raise Unclear
                if isinstance(name, ast.Name):
                    inner.names[name.id] = items
            for test in generator.ifs:
                self.condition(test, inner)
        parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        values = [plain(self.value(part, inner)) for part in parts]
        if Given.PART in values:
            return Given.PART
        self._require_apart(values)
        return Given.DATA

    def _call_super(self, node: ast.Call, name: str, frame: Frame) -> Any:
        code = frame.function.__code__
        if "__class__" not in code.co_freevars or not code.co_argcount:
            raise Unclear
        kind = (frame.function.__closure__ or ())[code.co_freevars.index("__class__")].cell_contents
        owner = frame.names.get(code.co_varnames[0])
        if not isinstance(owner, Known):
            raise Unclear
        mro = type(owner.value).__mro__
        above = mro[mro.index(kind) + 1 :]
        base = next((base for base in above if name in vars(base)), None)
        given, named = self._arguments(node, frame)
        if base in self.watching and base is not keras.callbacks.Callback:
            self.does(Doing.ENDS)
            return Given.DATA
        function = None if base is None else vars(base)[name]
        if not isinstance(function, types.FunctionType):
            raise Unclear
        return self.run(function, [owner, *given], named)

    def _call_inner(self, callee: Inner, given: Sequence[Any], named: dict[str, Any]) -> Any:
        parameters = callee.node.args
        places = [p.arg for p in (*parameters.posonlyargs, *parameters.args)]
        if len(given) != len(places) or named or parameters.vararg or parameters.kwonlyargs:
            raise Unclear
        names = {**callee.frame.names, **dict(zip(places, given, strict=True))}
        return self.run_node(callee.node, Frame(callee.frame.function, names))


def truth(value: Any) -> bool | None:
    """Returns whether a value is true, or None if that may be the one or the other."""
    if isinstance(value, Known) and value.fixed and isinstance(value.value, SIMPLE):
        return bool(value.value)
    return None


def either(values: Sequence[Any]) -> Any:
    """Returns what a value is that may be one of several.

    Raises:
        Unclear: they are too different.
    """
    first = values[0]
    if all(_identical(first, value) is True or value is first for value in values):
        return first
    for value in values:
        if not (_is_data(value) if isinstance(value, Known) else isinstance(value, Given)):
            raise Unclear
    return Given.PART if any(value is Given.PART for value in values) else Given.DATA


def merged(ways: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns the variables after several ways have met."""
    names: dict[str, Any] = {}
    for name in {name for way in ways for name in way}:
        try:
            names[name] = either([way[name] for way in ways if name in way])
        except Unclear:
            names[name] = UNCLEAR
    return names


def item_of(value: Any) -> Any:
    """Returns what is in a value.

    Raises:
        Unclear: it cannot be told.
    """
    if isinstance(value, tuple):
        return either(value) if value else Given.DATA
    if value in (Given.PART, Given.DATA):
        return value
    if isinstance(value, Known) and _is_data(value):
        return Given.DATA
    raise Unclear


def _is_data(known: Known) -> bool:
    """Whether an object cannot lead to the training."""
    if isinstance(known.value, (*SIMPLE, keras.callbacks.Callback)):
        return isinstance(known.value, SIMPLE)
    return origin_of(type(known.value)) is Origin.LIBRARY


def _identical(left: Any, right: Any) -> bool | None:
    """Returns whether two values are the same object, or None if that cannot be told."""
    if isinstance(left, Known) and isinstance(right, Known) and left.fixed and right.fixed:
        if left.value is right.value:
            return True
        known = (left.value is None) or (right.value is None)
        return False if known else None
    return None


def _equal(left: Any, right: Any) -> bool | None:
    """Returns whether two values are equal, or None if that cannot be told."""
    if truth(left) is not None and truth(right) is not None:
        return bool(left.value == right.value)
    for one, other in ((left, right), (right, left)):
        if one is Given.LATER and isinstance(other, Known) and type(other.value) is int and other.value <= 0:
            return False
    return None


def _is_super(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "super"
        and not node.args
    )
