"""What objects hold, and where code is written, is found without running any of it."""

import ast
import importlib.util
import linecache

import pytest

from overlap_train._inspection.attributes import variables_of
from overlap_train._inspection.code import definition_of


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


def test_variables_in_slots_are_among_those_of_an_object():
    assert variables_of(Own()) == {"inner": "in a slot", "level": 2}
    assert variables_of(3) == {}


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


@pytest.mark.parametrize(
    ("function", "source"),
    [
        (left, "lambda first: first + 1"),
        (right, "lambda second: second + 2"),
        (alike, "lambda x: x + 1"),
        (again, "lambda x: x + 2"),
        (doubly, "lambda: lambda x: x + 3"),
        (doubly(), "lambda x: x + 3"),
    ],
)
def test_lambdas_of_a_line_are_told_apart(function, source):
    assert ast.unparse(definition_of(function.__code__)) == source


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
        ("inner", "return lambda: 1", "return lambda: 2", False),
    ],
)
def test_a_source_that_was_edited_since_is_not_believed(tmp_path, name, before, after, found):
    path = tmp_path / "edited.py"
    function = loaded(path, f"def {name}():\n    {before}\n")[name]
    path.write_text(f"def {name}():\n    {after}\n")
    linecache.checkcache(str(path))
    assert (definition_of(function.__code__) is not None) is found
