"""The house: who may import whom, how high it is, and what a function may ask for."""

import ast

import pytest

from tests.rooms import (
    PAGE,
    ROOMS,
    ROOT,
    floors,
    imported_modules,
    nodes_of,
    room_of,
    rooms_imported_by,
    table,
)

FILES = sorted(ROOT.rglob("*.py"))
FILES_OF = {room: [path for path in FILES if room_of(path) == room] for room in ROOMS}
MOST_REQUIRED = 6


def named(path):
    return path.relative_to(ROOT).as_posix()


def nodes(path, *kinds):
    return [node for node in nodes_of(path) if isinstance(node, kinds)]


def required(function):
    """Returns how many arguments a function must be given, but for `self`."""
    arguments = function.args
    plain = [*arguments.posonlyargs, *arguments.args]
    count = len(plain) - len(arguments.defaults) + sum(d is None for d in arguments.kw_defaults)
    return count - bool(plain and plain[0].arg in ("self", "cls"))


def test_every_room_is_in_the_table():
    assert {room_of(path) for path in FILES} == set(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_what_it_may(room):
    allowed = {room, *ROOMS[room].imports}
    used = {named(path): rooms_imported_by(path) for path in FILES_OF[room]}
    assert {file: rooms - allowed for file, rooms in used.items() if rooms - allowed} == {}


@pytest.mark.parametrize("room", ROOMS)
def test_no_room_may_import_what_it_does_not(room):
    used = {name for path in FILES_OF[room] for name in rooms_imported_by(path)}
    assert ROOMS[room].imports <= used


def test_the_house_stays_low_and_small():
    assert max(floors().values()) <= 9
    assert len(ROOMS) <= 18
    assert sum(len(room.imports) for room in ROOMS.values()) <= 60
    assert len([path for path in FILES if path.parent == ROOT]) <= 8


def test_the_page_of_the_rooms_is_that_of_the_table():
    assert PAGE.read_text() == table(), "run python -m tests.rooms"


def test_no_files_import_each_other_in_a_circle():
    modules = {".".join(("overlap_train", *p.relative_to(ROOT).with_suffix("").parts)): p for p in FILES}
    modules = {name.removesuffix(".__init__"): path for name, path in modules.items()}

    def module_of(name):
        while name not in modules:
            name = name.rpartition(".")[0]
        return name

    needs = {name: {module_of(n) for n in imported_modules(path)} - {name} for name, path in modules.items()}
    # A package is imported for its names; which of its modules they come from is seen from there.
    packages = {name for name, path in modules.items() if path.name == "__init__.py"}
    left = {name: uses - {p for p in packages if name.startswith(f"{p}.")} for name, uses in needs.items()}
    while free := [name for name, uses in left.items() if not uses & left.keys()]:
        for name in free:
            del left[name]
    assert not left, f"in or behind a circle: {sorted(left)}"


def test_no_context_manager_is_a_generator():
    """They assign to the exceptions that pass, and a user's may not let them: see `_support/closing.py`."""
    using = {
        named(path)
        for path in FILES
        for node in nodes(path, ast.Name, ast.Attribute, ast.alias)
        if (getattr(node, "id", None) or getattr(node, "attr", None) or node.name).endswith("contextmanager")
    }
    assert using == set()


@pytest.mark.parametrize("room", ROOMS)
def test_functions_require_few_arguments(room):
    wanting = [
        f"{named(path)}: {function.name}"
        for path in FILES_OF[room]
        for function in nodes(path, ast.FunctionDef, ast.AsyncFunctionDef)
        if required(function) > MOST_REQUIRED
    ]
    assert wanting == []
