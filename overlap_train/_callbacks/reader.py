"""Reads a callback's code statement by statement, with its settings as they are, along all its ways."""

from __future__ import annotations

import ast
import inspect
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import keras

from overlap_train._callbacks.attributes import plain
from overlap_train._callbacks.doings import Doing
from overlap_train._callbacks.expressions import Expressions
from overlap_train._callbacks.flow import Frame, Inner, either, item_of, merged, same
from overlap_train._callbacks.given import Given, Known, asks
from overlap_train._callbacks.held import met
from overlap_train._inspection.code import Unclear
from overlap_train._inspection.origins import Origin, origin_of
from overlap_train._inspection.sources import Definition, definition_of

__all__ = ["Reader"]

_MOST_DEPTH = 16
_MOST_TURNS = 32


_LEAVING = (ast.Return, ast.Raise, ast.Break, ast.Continue)


class Reader(Expressions):
    """Reads what hooks of a callback do into `doing`; an `Unclear` that it raises is "anything"."""

    users = False
    """Whether code of the user's has been read, and not a library's alone."""
    _depth = 0

    def run(self, function: types.FunctionType, given: Sequence[Any], named: dict[str, Any]) -> Any:
        self.users = self.users or origin_of(function) is Origin.USER
        node = definition_of(function.__code__)
        if node is None:
            raise Unclear
        self.note(function, "__code__", "__defaults__", "__kwdefaults__")
        self.note(function.__kwdefaults__, *(function.__kwdefaults__ or ()))
        return self.run_node(node, Frame(function, _bound(function, node.args, given, named)))

    def run_node(self, node: Definition, frame: Frame) -> Any:
        self._depth += 1
        if self._depth > _MOST_DEPTH:
            raise Unclear
        if isinstance(node, ast.Lambda):
            frame.returned.append(self.value(node.body, frame))
        elif not self._block(node.body, frame):
            frame.returned.append(Known(None))
        self._depth -= 1
        return either(frame.returned) if frame.returned else Known(None)

    def _block(self, body: Sequence[ast.stmt], frame: Frame) -> bool:
        """Reads statements; returns whether none of the ways through them leads behind them."""
        for statement in body:
            self.step()
            read = getattr(self, f"_{type(statement).__name__.lower()}", None)
            if read is None:
                raise Unclear
            if read(statement, frame) or isinstance(statement, _LEAVING):
                return True
        return False

    # Statements. Each returns whether nothing behind it can be reached.

    def _pass(self, node: ast.Pass, frame: Frame) -> None: ...

    def _expr(self, node: ast.Expr, frame: Frame) -> None:
        self.value(node.value, frame)

    def _return(self, node: ast.Return, frame: Frame) -> None:
        frame.returned.append(Known(None) if node.value is None else plain(self.value(node.value, frame)))

    def _raise(self, node: ast.Raise, frame: Frame) -> None:
        self.fails = True
        for part in (node.exc, node.cause):
            if part is not None:  # else it is what would have been raised anyway
                self.value(part, frame)
                self.does(Doing.ENDS)

    def _assert(self, node: ast.Assert, frame: Frame) -> None:
        self.fails = True
        self.condition(node.test, frame)
        if node.msg is not None:
            self.value(node.msg, frame)
        self.does(Doing.ENDS)

    def _break(self, node: ast.Break, frame: Frame) -> None:
        frame.loops[-1].append(dict(frame.names))

    _continue = _break

    def _if(self, node: ast.If, frame: Frame) -> bool:
        known = self.condition(node.test, frame)
        if known is not None:
            return self._block(node.body if known else node.orelse, frame)
        return self._ways(frame, node.body, node.orelse)

    def _ways(self, frame: Frame, *bodies: Sequence[ast.stmt]) -> bool:
        """Reads bodies of which any may run; returns whether all of them end there."""
        before, left = frame.names, []
        for body in bodies:
            frame.names = dict(before)
            if not self._block(body, frame):
                left.append(frame.names)
        frame.names = merged(left) if left else before
        return not left

    def _for(self, node: ast.For, frame: Frame) -> None:
        items = plain(self.value(node.iter, frame))
        self.fails = True
        self._loop(lambda: self._assign_to(node.target, item_of(items), frame), node, frame)

    def _while(self, node: ast.While, frame: Frame) -> None:
        self._loop(lambda: self.condition(node.test, frame), node, frame)

    def _loop(self, begin: Callable[[], Any], node: ast.For | ast.While, frame: Frame) -> None:
        """Reads turns until another one sees nothing that an earlier one has not seen.

        Raises:
            Unclear: that takes too long.
        """
        for _ in range(_MOST_TURNS):
            before = dict(frame.names)
            begin()
            entered = dict(frame.names)
            frame.loops.append([])
            ended = self._block(node.body, frame)
            ways = [before, entered, *frame.loops.pop(), *([] if ended else [frame.names])]
            frame.names = merged(ways)
            if same(frame.names, before):
                break
        else:
            raise Unclear
        self._ways(frame, node.orelse, ())

    def _with(self, node: ast.With, frame: Frame) -> None:
        frame.begin_trail()
        for item in node.items:
            entered = plain(self.value(item.context_expr, frame))
            self._require_apart([entered])
            self.fails = True
            self.does(Doing.APART)
            if item.optional_vars is not None:
                self._assign_to(item.optional_vars, Given.DATA, frame)
        self._block(node.body, frame)
        frame.names = frame.end_trail()  # an error ends the block anywhere, and may be suppressed

    def _try(self, node: ast.Try, frame: Frame) -> bool:
        before, self.fails = self.fails, False
        frame.begin_trail()
        ended = self._block([*node.body, *node.orelse], frame)
        left, after = frame.end_trail(), frame.names
        failing, self.fails = self.fails, self.fails or before
        if failing:
            frame.begin_trail()
            ways = [] if ended else [after]
            for handler in node.handlers:
                ways += self._handled(handler, frame, left)
            frame.names = merged([left, frame.end_trail()])
            self._finally(node, frame)
            if not ways:
                return True
            ended, frame.names = False, merged(ways)
        return self._finally(node, frame) or ended

    def _finally(self, node: ast.Try, frame: Frame) -> bool:
        ended = self._block(node.finalbody, frame)
        if node.finalbody and frame.loops:
            frame.loops[-1].append(dict(frame.names))  # where the way is one out of a loop
        return ended

    def _handled(self, node: ast.ExceptHandler, frame: Frame, names: dict[str, Any]) -> list[dict[str, Any]]:
        """Reads what is done about an error; returns the variables behind it, unless it ends there."""
        frame.names = dict(names)
        if node.type is not None:
            self.value(node.type, frame)
        if node.name:
            frame.bind(node.name, Given.DATA)
        return [] if self._block(node.body, frame) else [frame.names]

    def _assign(self, node: ast.Assign, frame: Frame) -> None:
        value = plain(self.value(node.value, frame))
        for target in node.targets:
            self._assign_to(target, value, frame)

    def _annassign(self, node: ast.AnnAssign, frame: Frame) -> None:
        if node.value is None:
            if not isinstance(node.target, ast.Name):
                raise Unclear
        else:
            self._assign_to(node.target, plain(self.value(node.value, frame)), frame)

    def _augassign(self, node: ast.AugAssign, frame: Frame) -> None:
        load = ast.copy_location(_as_load(node.target), node)
        self._require_apart([plain(self.value(load, frame)), plain(self.value(node.value, frame))])
        self.fails = True
        self._assign_to(node.target, Given.DATA, frame)

    def _delete(self, node: ast.Delete, frame: Frame) -> None:
        if not all(isinstance(target, ast.Name) for target in node.targets):
            raise Unclear

    def _import(self, node: ast.Import, frame: Frame) -> None:
        for alias in node.names:
            name = alias.name if alias.asname else alias.name.split(".")[0]
            frame.bind(alias.asname or name, self._imported(name))

    def _importfrom(self, node: ast.ImportFrom, frame: Frame) -> None:
        if node.level or node.module is None:
            raise Unclear
        module = self._imported(node.module)
        for alias in node.names:
            frame.bind(alias.asname or alias.name, self.attribute(module, alias.name))

    def _imported(self, name: str) -> Known:
        if name not in sys.modules:
            raise Unclear
        self.note(sys.modules, name)
        return Known(sys.modules[name])

    def _functiondef(self, node: ast.FunctionDef, frame: Frame) -> None:
        if node.decorator_list or (node.returns is not None and not isinstance(node.returns, ast.Constant)):
            raise Unclear
        self.defaults(node.args, frame)
        frame.bind(node.name, Inner(node, frame))

    def _assign_to(self, target: ast.expr, value: Any, frame: Frame) -> None:
        if isinstance(target, ast.Name):
            frame.bind(target.id, value)
        elif isinstance(target, (ast.Tuple, ast.List)):
            self.fails = True
            for part in target.elts:
                self._assign_to(part, item_of(value), frame)
        elif isinstance(target, ast.Starred):
            self._assign_to(target.value, value, frame)
        elif isinstance(target, ast.Attribute):
            self._set(plain(self.value(target.value, frame)), target.attr, value)
        elif isinstance(target, ast.Subscript):
            parts = [plain(self.value(part, frame)) for part in (target.value, target.slice)]
            self._require_apart([*parts, value])
            self.fails = True
            self.does(Doing.APART)

    def _set(self, owner: Any, name: str, value: Any) -> None:
        """Reads that an attribute of a value is set."""
        self.sets.add(name)
        if owner is Given.PART and name == "stop_training":
            self.does(Doing.ENDS)
            return
        self._require_apart([value])
        if owner is Given.PART or (owner is not Given.DATA and not isinstance(owner, Known)):
            raise Unclear
        if isinstance(owner, Known):
            if isinstance(owner.value, (type, types.ModuleType)) or name.startswith("on_"):
                raise Unclear
            of_callback = isinstance(owner.value, keras.callbacks.Callback)
            if of_callback and name in ("model", "_model", "params"):
                raise Unclear
            if self._sets(owner, name, value):
                return
        self.does(Doing.APART)

    def _sets(self, owner: Known, name: str, value: Any) -> bool:
        """Reads the property that an attribute is, if it is one; returns whether it is.

        Raises:
            Unclear: other code says what becomes of the value.
        """
        self.note(type(owner.value), name, "__setattr__")
        found = inspect.getattr_static(type(owner.value), name, None)
        if isinstance(found, property) and isinstance(found.fset, types.FunctionType):
            self.run(found.fset, [owner, value], {})
            return True
        slot = isinstance(found, types.MemberDescriptorType)
        if asks(owner, "__setattr__") or (hasattr(type(found), "__set__") and not slot):
            raise Unclear
        return False


def _as_load(target: ast.expr) -> ast.expr:
    """Returns the expression that reads what is assigned to."""
    if isinstance(target, ast.Name):
        return ast.Name(target.id, ast.Load())
    if isinstance(target, ast.Attribute):
        return ast.Attribute(target.value, target.attr, ast.Load())
    if isinstance(target, ast.Subscript):
        return ast.Subscript(target.value, target.slice, ast.Load())
    raise Unclear


def _bound(
    function: types.FunctionType, parameters: ast.arguments, given: Sequence[Any], named: dict[str, Any]
) -> dict[str, Any]:
    """Returns the variables with which a function begins.

    Raises:
        Unclear: the arguments do not fit.
    """
    places = [p.arg for p in (*parameters.posonlyargs, *parameters.args)]
    bound: dict[str, Any] = dict(zip(places, map(plain, given), strict=False))
    extra, rest = list(given[len(places) :]), {n: v for n, v in named.items() if n != "**"}
    if parameters.vararg is not None:
        bound[parameters.vararg.arg] = tuple(map(plain, extra))
    elif extra:
        raise Unclear
    known = {*places, *(p.arg for p in parameters.kwonlyargs)}
    bound |= {name: plain(value) for name, value in rest.items() if name in known}
    others = {name: plain(value) for name, value in rest.items() if name not in known}
    if "**" in named or (others and parameters.kwarg is None):
        raise Unclear
    if parameters.kwarg is not None:
        bound[parameters.kwarg.arg] = others
    defaults = function.__defaults__ or ()
    for name, value in {**dict(zip(places[len(places) - len(defaults) :], defaults, strict=True))}.items():
        bound.setdefault(name, met(value))
    for name, value in (function.__kwdefaults__ or {}).items():
        bound.setdefault(name, met(value))
    if known - bound.keys():
        raise Unclear
    return bound
