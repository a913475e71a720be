"""Reads the expressions of a callback's code: what their values are, and what it takes to have them."""

from __future__ import annotations
import __future__

import ast
import builtins
import types
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, cast

import keras

from overlap_train._callbacks.attributes import plain
from overlap_train._callbacks.calls import Calls
from overlap_train._callbacks.doings import Doing
from overlap_train._callbacks.flow import (
    UNCLEAR,
    Frame,
    Inner,
    either,
    equal,
    identical,
    item_of,
    merged,
    truth,
)
from overlap_train._callbacks.given import Given, Known, asks
from overlap_train._callbacks.leads import has_own_functions, is_apart
from overlap_train._inspection.code import Unclear, cells_of
from overlap_train._inspection.lookup import MISSING, look_up
from overlap_train._inspection.sources import Definition

__all__ = ["Expressions"]

_MOST_STEPS = 20_000
_ANNOTATIONS_AS_TEXT = __future__.annotations.compiler_flag


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
            return self._unary(node, frame)
        if isinstance(node, ast.IfExp):
            return self._conditional(node, frame)
        if isinstance(node, ast.Lambda):
            self.defaults(node.args, frame)
            return Inner(node, frame)
        if isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)):
            return self._comprehension(node, frame)
        if isinstance(node, ast.NamedExpr):
            frame.bind(node.target.id, plain(self.value(node.value, frame)))
            return frame.names[node.target.id]
        return self._composed(node, frame)

    def defaults(self, parameters: ast.arguments, frame: Frame) -> None:
        """Reads what a function's definition computes as it is reached."""
        for default in (*parameters.defaults, *parameters.kw_defaults):
            if default is not None:
                self.value(default, frame)
        if frame.function.__code__.co_flags & _ANNOTATIONS_AS_TEXT:
            return
        every = (*parameters.posonlyargs, *parameters.args, *parameters.kwonlyargs)
        for parameter in (*every, parameters.vararg, parameters.kwarg):
            if parameter is not None and parameter.annotation is not None:
                self.value(parameter.annotation, frame)

    def _unary(self, node: ast.UnaryOp, frame: Frame) -> Any:
        if isinstance(node.op, ast.Not):
            known = self.condition(node.operand, frame)
            return Given.ANSWER if known is None else Known(not known)
        value = plain(self.value(node.operand, frame))
        self.fails = True
        if value is Given.PART:
            self.does(Doing.LOOKS)
        else:
            self._require_apart([value])
        return Given.DATA

    def _conditional(self, node: ast.IfExp, frame: Frame) -> Any:
        known = self.condition(node.test, frame)
        if known is not None:
            return self.value(node.body if known else node.orelse, frame)
        before, values, ways = frame.names, [], []
        for way in (node.body, node.orelse):
            frame.names = dict(before)
            values.append(plain(self.value(way, frame)))
            ways.append(frame.names)
        frame.names = merged(ways)
        return either(values)

    def _composed(self, node: ast.expr, frame: Frame) -> Any:
        """Reads what is made of values only: arithmetic, containers, text, items."""
        kinds = (ast.BinOp, ast.Dict, ast.List, ast.Tuple, ast.Set, ast.Subscript, ast.Slice, ast.JoinedStr)
        if not isinstance(node, (*kinds, ast.FormattedValue, ast.Starred)):
            raise Unclear
        parts = [n for n in ast.iter_child_nodes(node) if isinstance(n, ast.expr)]
        failing = (ast.BinOp, ast.Subscript, ast.FormattedValue, ast.Starred)
        self.fails = self.fails or isinstance(node, failing)
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
            cell = cells_of(function)[name]
            try:
                return self.held(cell, name, cell.cell_contents, fixed=False)
            except ValueError:
                raise Unclear from None
        if name in function.__globals__:
            return self.held(function.__globals__, name, function.__globals__[name], fixed=False)
        if hasattr(builtins, name):
            self.note(function.__globals__, name)
            self.note(vars(builtins), name)
            return Known(getattr(builtins, name))
        raise Unclear

    def _call(self, node: ast.Call, frame: Frame) -> Any:
        if isinstance(node.func, ast.Attribute) and _is_super(node.func.value):
            return self._call_super(node, node.func.attr, frame)
        callee = self.value(node.func, frame)
        given, named = self._arguments(node, frame)
        if isinstance(callee, Known) and callee.value is getattr:
            return self._getattr(given)
        if isinstance(callee, Known) and callee.value is hasattr:
            return self._hasattr(given)
        if isinstance(callee, Inner):
            return self._call_inner(callee, given, named)
        return self.call(callee, given, named)

    def _getattr(self, given: Sequence[Any]) -> Any:
        name = given[1].value if len(given) > 1 and isinstance(given[1], Known) else None
        if not isinstance(name, str):
            raise Unclear
        if isinstance(given[0], Known) and len(given) > 2 and self._lacks(given[0], name):
            return given[2]
        found = plain(self.attribute(given[0], name))
        return found if len(given) < 3 else either([found, given[2]])

    def _hasattr(self, given: Sequence[Any]) -> Given:
        """Reads `hasattr`, which computes a property."""
        name = given[1].value if len(given) == 2 and isinstance(given[1], Known) else None
        if not isinstance(name, str):
            raise Unclear
        if not (isinstance(given[0], Known) and self._lacks(given[0], name)):
            self.attribute(given[0], name)
        return Given.ANSWER

    def _lacks(self, owner: Known, name: str) -> bool:
        """Whether an object has no attribute of a name, as far as can be told without asking it."""
        if asks(owner, "__getattr__", "__getattribute__") or isinstance(owner.value, types.ModuleType):
            return False
        lacks = look_up(owner.value, name) is MISSING and not is_apart(owner.value)
        if lacks:
            self.note(owner.value, name, "__getattr__")
        return lacks

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
        if plain(value) in (Given.PART, Given.DATA):
            self.fails = True  # an array of several elements is neither true nor false
        if asks(value, "__bool__", "__len__"):
            raise Unclear
        return truth(value)

    def _bool(self, node: ast.BoolOp, frame: Frame) -> Any:
        ends = isinstance(node.op, ast.Or)  # with the first that is true
        values = []
        for part in node.values:
            before = dict(frame.names)
            values.append(plain(self.value(part, frame)))
            if part is not node.values[0]:
                frame.names = merged([before, frame.names])  # an earlier one may have ended it
            known = self._truth(values[-1])
            if known is ends:
                break
            if known is not None and part is not node.values[-1]:
                values.pop()
        return either(values)

    def _compare(self, node: ast.Compare, frame: Frame) -> Any:
        before = dict(frame.names)
        values = [plain(self.value(part, frame)) for part in (node.left, *node.comparators)]
        if len(node.ops) > 1:
            frame.names = merged([before, frame.names])
        if Given.PART in values:
            self.does(Doing.LOOKS)
        kind = type(node.ops[0])
        if len(node.ops) == 1 and kind in (ast.Is, ast.IsNot):
            known = identical(*values)
            return Given.ANSWER if known is None else Known(known is (kind is ast.Is))
        self._require_apart([value for value in values if value is not Given.PART])
        if len(node.ops) == 1 and kind in (ast.Eq, ast.NotEq):
            known = equal(*values)
            if known is not None:
                return Known(known is (kind is ast.Eq))
        self.fails = True
        return Given.DATA

    def _comprehension(
        self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp, frame: Frame
    ) -> Any:
        if any(isinstance(each, ast.NamedExpr) for each in ast.walk(node)):
            raise Unclear  # it sets variables of the function, perhaps, and turn by turn
        inner = Frame(frame.function, dict(frame.names))
        self.fails = True
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
        kind, owner = self._super_class(node, frame), frame.names.get(code.co_varnames[0])
        if not isinstance(owner, Known):
            raise Unclear
        mro = type(owner.value).__mro__
        above = mro[mro.index(kind) + 1 :]
        base = next((base for base in above if name in vars(base)), None)
        given, named = self._arguments(node, frame)
        if (
            base is not None
            and base in self.watching
            and base is not keras.callbacks.Callback
            and not _replaces(owner.value, base)
        ):
            self.does(Doing.ENDS)
            return Given.DATA
        function = None if base is None else vars(base)[name]
        if not isinstance(function, types.FunctionType):
            raise Unclear
        for each in above[: above.index(base) + 1]:
            self.note(each, name)
        return self.run(function, [owner, *given], named)

    def _super_class(self, node: ast.Call, frame: Frame) -> type:
        """Returns the class above which `super()` or `super(Class, self)` looks."""
        assert isinstance(node.func, ast.Attribute)
        assert isinstance(node.func.value, ast.Call)
        code, arguments = frame.function.__code__, node.func.value.args
        if not code.co_argcount:
            raise Unclear
        if not arguments and "__class__" in code.co_freevars:
            return cast(type, cells_of(frame.function)["__class__"].cell_contents)
        kind = self.value(arguments[0], frame) if len(arguments) == 2 else None
        last = arguments[-1] if kind else None
        own = isinstance(last, ast.Name) and last.id == code.co_varnames[0]
        if not (own and isinstance(kind, Known) and isinstance(kind.value, type)):
            raise Unclear
        return kind.value

    def _call_inner(self, callee: Inner, given: Sequence[Any], named: dict[str, Any]) -> Any:
        parameters = callee.node.args
        places = [p.arg for p in (*parameters.posonlyargs, *parameters.args)]
        if len(given) != len(places) or named or parameters.vararg or parameters.kwonlyargs:
            raise Unclear
        names = {**callee.frame.names, **dict(zip(places, given, strict=True))}
        return self.run_node(callee.node, Frame(callee.frame.function, names))


def _is_super(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "super"
        and not node.keywords
    )


def _replaces(owner: Any, base: type) -> bool:
    """Whether a callback has put methods of its own in the place of those that Keras's hooks call."""
    names = [name for name, member in vars(base).items() if isinstance(member, types.FunctionType)]
    called = [name for name in names if not name.startswith("on_") and name != "__init__"]
    replaced = any(getattr(type(owner), name) is not vars(base)[name] for name in called)
    return replaced or has_own_functions(owner)
