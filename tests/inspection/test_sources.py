"""The definition of a function is found only if it is for certain the code that runs."""

from __future__ import annotations

import ast
import functools
import importlib.util
import linecache

import pytest

from overlap_train._inspection.sources import EVERYTHING, assigned_in, definition_of


def plain(a, b=1):
    return a + b


def decorated(function):
    @functools.wraps(function)
    def around(*arguments):
        return function(*arguments)

    return around


@decorated
def wrapped(a):
    return a


left, right = (lambda first: first + 1), (lambda second: second + 2)
alike, again = (lambda x: x + 1), (lambda x: x + 2)


def loaded(path, source, name="loaded"):
    """Returns the variables of a file's module, freshly imported."""
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return vars(module)


def test_a_function_is_found_by_its_code():
    found = definition_of(plain.__code__)
    assert isinstance(found, ast.FunctionDef)
    assert (found.name, [a.arg for a in found.args.args]) == ("plain", ["a", "b"])
    assert definition_of(wrapped.__wrapped__.__code__).name == "wrapped"
    assert definition_of(wrapped.__code__).name == "around"


def test_lambdas_of_a_line_are_told_apart_by_their_names():
    assert definition_of(left.__code__).args.args[0].arg == "first"
    assert definition_of(right.__code__).args.args[0].arg == "second"
    assert definition_of(alike.__code__) is definition_of(again.__code__) is None


def test_code_without_a_source_has_no_definition():
    variables = {}
    exec("def f(): return 1", variables)
    assert definition_of(variables["f"].__code__) is None


@pytest.mark.parametrize(
    ("name", "before", "after", "found"),
    [
        ("same", "return 1", "return 1", True),
        ("constant", "return 1", "return 2", False),
        ("kind", "return 1", "return True", False),
        ("syntax", "return 1", "return (", False),
        ("inner", "return lambda: 1", "return lambda: 2", False),
    ],
)
def test_a_source_that_was_edited_since_is_not_believed(tmp_path, name, before, after, found):
    path = tmp_path / "edited.py"
    function = loaded(path, f"def {name}():\n    {before}\n")[name]
    path.write_text(f"def {name}():\n    {after}\n")
    linecache.checkcache(str(path))
    assert (definition_of(function.__code__) is not None) is found


class Counts:
    def __init__(self):
        self.begun = 0

    def step(self):
        self.steps = 1
        del self.gone

    @property
    def shown(self):
        self.asked = True
        return 1

    @staticmethod
    def other(thing):
        thing.touched = True

    @decorated
    def around(self):
        def inner():
            self.deep = 1

        return inner


class Derived(Counts):
    def more(self):
        self.later = 1


def test_what_methods_set_after_the_beginning_is_known_by_name():
    assert assigned_in(Counts) == {"steps", "gone", "asked", "touched", "deep"}
    assert assigned_in(Derived) == assigned_in(Counts) | {"later"}


class BySetattr:
    def step(self, name):
        setattr(self, name, 1)


class ByDict:
    def step(self):
        self.__dict__.update(a=1)


class BeginsAnew:
    def step(self):
        self.__init__()


class OtherClass:
    def step(self):
        self.__class__ = Counts


@pytest.mark.parametrize("kind", [BySetattr, ByDict, BeginsAnew, OtherClass])
def test_who_may_set_anything_sets_everything(kind):
    assert assigned_in(kind) is EVERYTHING


def test_everything_holds_each_name():
    assert "any" in EVERYTHING
    assert EVERYTHING | {"a"} is EVERYTHING
