"""Names and modules that moved are found where they were, with a warning that says the new name."""

from __future__ import annotations

import importlib
import subprocess
import sys
import types

import pytest

from overlap_train._support import moved as _moved
from overlap_train._support.moved import find_moved_modules, moved_names


@pytest.fixture
def house(tmp_path, monkeypatch):
    """A package `house` with `rooms.kitchen`, and what was imported of it forgotten afterwards."""
    rooms = tmp_path / "house" / "rooms"
    rooms.mkdir(parents=True)
    (tmp_path / "house" / "__init__.py").write_text("")
    (rooms / "__init__.py").write_text("DOORS = 2\n")
    (rooms / "kitchen.py").write_text(
        "STOVE = object()\nif __name__ == '__main__':\n    import sys\n    print('cooking', sys.argv[0])\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    finders = list(sys.meta_path)
    yield tmp_path
    sys.meta_path[:] = finders
    for name in [name for name in sys.modules if name.partition(".")[0] == "house"]:
        del sys.modules[name]


def package(homes, otherwise=None):
    made = types.ModuleType("old")
    made.__getattr__ = moved_names("old", homes, otherwise)
    return made


def test_a_name_that_moved_is_the_new_one_and_says_so(house):
    old = package({"OVEN": "house.rooms.kitchen.STOVE"})
    with pytest.warns(
        DeprecationWarning, match=r"old\.OVEN has moved to house\.rooms\.kitchen\.STOVE"
    ) as told:
        found = old.OVEN
    assert found is importlib.import_module("house.rooms.kitchen").STOVE
    assert told[0].filename == __file__  # the line that used the name, not ours


def test_other_names_are_asked_elsewhere_or_are_not_there():
    with pytest.raises(AttributeError, match="module 'old' has no attribute 'cellar'"):
        getattr(package({}), "cellar")  # noqa: B009
    assert package({}, otherwise=str.upper).cellar == "CELLAR"
    assert not hasattr(package({"OVEN": "house.STOVE"}), "cellar")


@pytest.mark.parametrize(
    ("moved", "statement"),
    [
        ({"house.cook": "house.rooms.kitchen"}, "import house.cook as found"),
        ({"house.cook": "house.rooms.kitchen"}, "from house import cook as found"),
        ({"house.flat": "house.rooms"}, "import house.flat.kitchen as found"),
        ({"house.flat": "house.rooms"}, "from house.flat import kitchen as found"),
        (
            {"house.flat": "house.rooms", "house.flat.cook": "house.rooms.kitchen"},
            "import house.flat.cook as found",
        ),
    ],
)
def test_a_module_that_moved_is_the_new_one_whoever_imports_it(house, moved, statement):
    find_moved_modules(moved)
    space = {"__name__": "user"}
    with pytest.warns(DeprecationWarning, match="has moved to house.rooms"):
        exec(statement, space)
    kitchen = importlib.import_module("house.rooms.kitchen")
    assert space["found"] is kitchen
    assert kitchen.__spec__.name == "house.rooms.kitchen"
    assert importlib.reload(kitchen) is kitchen


def test_nothing_else_in_a_package_that_moved_is_found(house):
    find_moved_modules({"house.flat": "house.rooms"})
    with (
        pytest.warns(DeprecationWarning, match="house.rooms"),
        pytest.raises(ModuleNotFoundError, match=r"house\.flat\.bath"),
    ):
        importlib.import_module("house.flat.bath")


def test_a_module_that_is_in_the_repository_only_says_where(house):
    find_moved_modules({"house.flat": "nowhere.flat"})
    with pytest.raises(ModuleNotFoundError, match=r"in the repository.*python -m nowhere\.flat at the root"):
        importlib.import_module("house.flat.kitchen")


def test_finders_are_installed_once(house):
    before = len(sys.meta_path)
    find_moved_modules({"house.flat": "house.rooms"})
    find_moved_modules({"house.flat": "house.rooms"})
    assert len(sys.meta_path) == before + 1


def test_a_command_that_moved_runs_and_says_so_unasked(house):
    code = (
        f"import runpy, sys; sys.path.insert(0, {str(house)!r}); "
        "from overlap_train._support.moved import find_moved_modules; "
        "find_moved_modules({'house.cook': 'house.rooms.kitchen'}); "
        "runpy.run_module('house.cook', run_name='__main__', alter_sys=True)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == f"cooking {house / 'house' / 'rooms' / 'kitchen.py'}\n"
    assert "house.cook has moved to house.rooms.kitchen" in done.stderr


@pytest.mark.parametrize("name", sorted(_moved.MOVED_MODULES))
def test_every_module_that_moved_is_where_we_say(name):
    assert importlib.util.find_spec(_moved.MOVED_MODULES[name]) is not None
    assert name not in sys.modules or sys.modules[name].__name__ == _moved.MOVED_MODULES[name]
