"""What code names and what is under a name is found without running any of it; whose it is, too."""

from __future__ import annotations

import ast
import functools
import importlib.util
import linecache

import pytest

from overlap_train._inspection.code import (
    MISSING,
    definition_of,
    look_up,
    variables_of,
)

THREE = 3


class Base:
    __slots__ = ("inner", "other")
    level = 1

    def __init__(self):
        self.inner = "in a slot"


class Own(Base):
    def __init__(self):
        super().__init__()
        self.level = 2

    def __getattr__(self, name):
        return "made up"


def closes_over(value):
    return lambda: value


def with_default(value=THREE):
    return value


@pytest.mark.parametrize(
    ("owner", "name", "found"),
    [
        (Own(), "level", 2),
        (Base(), "level", 1),
        (Own, "level", 1),
        (Own(), "inner", "in a slot"),
        (Own(), "other", MISSING),
        (Own(), "absent", MISSING),
        (globals(), "THREE", 3),
        (globals(), "ABSENT", MISSING),
        (closes_over(4).__closure__[0], "value", 4),
        (with_default, "__defaults__", (3,)),
        (with_default, "__code__", with_default.__code__),
    ],
)
def test_what_is_under_a_name(owner, name, found):
    assert look_up(owner, name) == found


def test_a_class_s_property_comes_before_an_object_s_variable():
    class Has:
        on = property(lambda self: 1)

    thing = Has()
    vars(thing)["on"] = 2
    assert look_up(thing, "on") is vars(Has)["on"]


def test_variables_in_slots_are_among_those_of_an_object():
    assert variables_of(Own()) == {"inner": "in a slot", "level": 2}
    assert variables_of(3) == {}


def plain(a, b=1):
    return a + b


def decorating(function):
    @functools.wraps(function)
    def around(*arguments):
        return function(*arguments)

    return around


@decorating
def ornate(a):
    return a


left, right = (lambda first: first + 1), (lambda second: second + 2)

alike, again = (lambda x: x + 1), (lambda x: x + 2)

doubly = lambda: lambda x: x + 3  # noqa: E731


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
    assert definition_of(ornate.__wrapped__.__code__).name == "ornate"
    assert definition_of(ornate.__code__).name == "around"


def test_lambdas_of_a_line_are_told_apart():
    assert definition_of(left.__code__).args.args[0].arg == "first"
    assert definition_of(right.__code__).args.args[0].arg == "second"
    for function, body in (
        (alike, "x + 1"),
        (again, "x + 2"),
        (doubly, "lambda x: x + 3"),
        (doubly(), "x + 3"),
    ):
        assert ast.unparse(definition_of(function.__code__).body) == body


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


def test_a_cell_may_hold_nothing_yet():
    def reads():
        return later

    assert look_up(reads.__closure__[0], "later") is MISSING
    later = 5
    assert look_up(reads.__closure__[0], "later") == 5
