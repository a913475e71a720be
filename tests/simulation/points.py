"""Loads modules of the package with a point before each statement of their functions, perhaps with a fault.

At a point the scheduler may let another thread run, or a signal come. A planted fault is a text of a module
that is replaced as the module is loaded.
"""

from __future__ import annotations

import ast
import builtins
import importlib.abc
import importlib.machinery
import sys
from pathlib import Path
from typing import Any

from tests.simulation import scheduler
from tests.simulation.faults import Fault

PACKAGE = "overlap_train"
ROOMS = ("_fit", "_validation")
MODULES = (
    *("_callbacks.delivery", "_callbacks.late", "_callbacks.replay", "_checkpoint.resume"),
    *("_data.cached_batches", "_data.cursor", "_data.streamed_batches", "_snapshot", "_support.threads"),
    *("monitoring.recorder", "scheduling.costs", "scheduling.distributor", "scheduling.engine"),
    "scheduling.service",
)


# The iterator has an item for each point that is passed: a call at each would take three times as long.
_POINT = """
for _simulation_item in _simulation_left:
    break
else:
    _simulation_point()
"""


def has_points(module: str) -> bool:
    """Whether a module, by its name in the package, gets points."""
    return module.split(".")[0] in ROOMS or module in MODULES


class Loader(importlib.machinery.SourceFileLoader):
    """Compiles a module's text with points in it; nothing is cached."""

    fault: Fault | None = None
    adds_points = True

    @classmethod
    def changes(cls, name: str) -> list[tuple[str, str]]:
        """Return the texts of a module that a fault replaces, and what takes their places."""
        return cls.fault.changes.get(name, []) if cls.fault is not None else []

    def get_code(self, fullname: str) -> Any:
        name = fullname.removeprefix(f"{PACKAGE}.")
        text = Path(self.path).read_text(encoding="utf-8")
        for change in self.changes(name):
            text = planted(text, *change)
        tree = ast.parse(text, self.path)
        if self.adds_points and has_points(name):
            add_points(tree)
        return compile(tree, self.path, "exec", dont_inherit=True)


def planted(text: str, old: str, new: str) -> str:
    """Return a text with a fault in the one place where it belongs."""
    if text.count(old) != 1:
        raise ValueError(f"a fault belongs in {text.count(old)} places: {old}")
    return text.replace(old, new)


def add_points(tree: ast.Module) -> None:
    """Put a point before each statement of all functions."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            _add_to(function)


def _add_to(function: ast.FunctionDef) -> None:
    for node in ast.walk(function):
        if node is not function and isinstance(node, ast.FunctionDef | ast.ClassDef):
            continue
        if hasattr(node, "is_point"):
            continue
        for name in ("body", "orelse", "finalbody"):
            statements = getattr(node, name, None)
            if isinstance(statements, list) and statements and not hasattr(statements[0], "is_point"):
                setattr(node, name, list(_with_points(statements)))


def _with_points(statements: list[ast.stmt]) -> Any:
    for statement in statements:
        if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
            (point,) = ast.parse(_POINT).body
            point.is_point = True
            for node in ast.walk(point):
                ast.copy_location(node, statement)
            yield point
        yield statement


class Finder(importlib.abc.MetaPathFinder):
    """Finds the modules that are to be loaded so."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        name = fullname.removeprefix(f"{PACKAGE}.")
        if name == fullname or not (has_points(name) or Loader.changes(name)):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = Loader(fullname, spec.loader.path)
        return spec


def install(fault: Fault | None = None) -> None:
    """Have modules of the package loaded so from now on; none may have been imported."""
    builtins._simulation_point = scheduler.point
    Loader.fault = fault
    sys.meta_path.insert(0, Finder())


def simulate_threads() -> None:
    """Give the modules that have been loaded simulated threads, locks and clocks."""
    for fullname, module in list(sys.modules.items()):
        name = fullname.removeprefix(f"{PACKAGE}.")
        if name != fullname and has_points(name):
            for replaced in ("threading", "time"):
                if hasattr(module, replaced):
                    setattr(module, replaced, getattr(scheduler, replaced))
    scheduler.simulate_futures()
