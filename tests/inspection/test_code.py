"""The names in code are found, those in functions inside it too; so are functions behind decorators."""

from __future__ import annotations

import functools
import sys
import types

from overlap_train._inspection.code import (
    content_of,
    function_of,
    functions_in,
    imported,
    names_in,
    stored_in,
    stores,
    texts_in,
    within,
)

LEVEL = 1


def outer(thing):
    def inner():
        global LEVEL
        LEVEL = thing.inside
        return [each.deep for each in thing]

    thing.own = len("not a name") + len("a_name")
    return inner


def test_names_are_those_of_the_functions_inside_too():
    assert names_in(outer.__code__) >= {"LEVEL", "inside", "deep", "own", "len"}
    assert "thing" not in names_in(outer.__code__), "a variable of its own"
    assert {code.co_name for code in within(outer.__code__)} >= {"outer", "inner"}
    assert texts_in(outer.__code__) >= {"a_name"}
    assert "not a name" not in texts_in(outer.__code__)


def test_what_is_stored():
    assert stored_in(outer.__code__, "STORE_ATTR") == {"own"}
    assert stored_in(outer.__code__, "STORE_GLOBAL") == {"LEVEL"}
    assert stores(outer.__code__, "LEVEL")
    assert not stores(outer.__code__, "inside"), "which is only read"
    assert not stores(outer.__code__, "elsewhere")


def test_a_variable_of_an_enclosing_function_that_is_set_again():
    value = 1

    def set_again():
        nonlocal value
        value = 2

    def reads():
        return value

    assert stores(set_again.__code__, "value")
    assert not stores(reads.__code__, "value")


def wrapped(function):
    @functools.wraps(function)
    def run(*arguments):
        return function(*arguments)

    return run


class Members:
    @property
    def read(self):
        return 1

    @classmethod
    def of_class(cls):
        return 2

    @staticmethod
    @wrapped
    def decorated():
        return 3

    @functools.cached_property
    def once(self):
        return 4


def test_functions_behind_members():
    def names(name):
        return {function.__name__ for function in functions_in(vars(Members)[name])}

    assert [names(name) for name in ("read", "of_class", "once")] == [{"read"}, {"of_class"}, {"once"}]
    codes = {function.__code__.co_name for function in functions_in(vars(Members)["decorated"])}
    assert codes == {"run", "decorated"}
    assert function_of(vars(Members)["read"]).__name__ == "read"
    assert function_of(vars(Members)["of_class"]).__name__ == "of_class"
    assert function_of(3) == 3


def test_a_cell_may_hold_nothing_yet():
    def reads():
        return later

    assert content_of(reads.__closure__[0]) == ()
    later = None
    assert content_of(reads.__closure__[0]) == (None,)


def test_modules_that_an_import_may_mean(monkeypatch):
    own = types.ModuleType("users_package.data")
    monkeypatch.setitem(sys.modules, "users_package.data", own)
    assert imported("data", "users_package") == [own]
    assert imported("data_that_nobody_has", "users_package") == []
    assert imported("sys", None) == [sys]
