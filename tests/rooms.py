"""The rooms of the house: what each holds, on which floor, and whose code it may import.

A room is a folder of `overlap_train/`, or a few folders and modules of one idea. `test_rooms.py` holds the
sources to this table, and `docs/internals/rooms.md` is written from it by `python -m tests.rooms`.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1] / "overlap_train"
PAGE = ROOT.parent / "docs" / "internals" / "rooms.md"


@dataclass(frozen=True)
class Room:
    """What a room holds, the rooms below it whose code it may import, and its folders and modules."""

    holds: str
    imports: frozenset[str]
    parts: tuple[str, ...]


def _room(holds: str, imports: str = "", *, parts: str = "") -> Room:
    return Room(holds, frozenset(imports.split()), tuple(parts.split()))


# From the roof to the ground. A room without parts is the folder or module of its name.
ROOMS = {
    "face": _room(
        "what users import, call and subclass: `Trainer`, `routed()`, the package's names and `parallel`'s",
        "_fit _keras _training conv ground monitoring parallel",
        parts="__init__ trainer routing",
    ),
    "cli": _room("the command `overlap-train`", "_keras conv face ground"),
    "_fit": _room(
        "one `fit`: built, run epoch by epoch, delivered; the only room that knows all stages",
        "_callbacks _checkpoint _data _inspection _keras _snapshot _training _validation ground monitoring "
        "parallel",
    ),
    "_validation": _room(
        "how a snapshot is evaluated: workers, shards, order, merging; functions and their private models",
        "_data _inspection _keras _snapshot _training ground parallel",
    ),
    "_training": _room(
        "the step, its compiled loops, plans and faster operations; the step on replicas",
        "_data _inspection _keras conv ground parallel",
    ),
    "_checkpoint": _room(
        "the file of a checkpoint, and what goes into it; the directory of an evaluator",
        "_callbacks _data _inspection _keras _snapshot ground",
    ),
    "_callbacks": _room(
        "which callback listens to what, delivery, the state of callbacks, the plain values in it",
        "_inspection _keras _snapshot ground",
    ),
    "_data": _room(
        "arrays, pipelines and generators; positions in them; shards", "_inspection _keras ground zero_copy"
    ),
    "conv": _room("the tiled convolution, compiled for CPU and CUDA", "_keras ground"),
    "scheduling": _room("several networks at once, layer by layer", "_keras conv ground zero_copy"),
    "_snapshot": _room("one immutable version of the state from which training continues", "_inspection"),
    "monitoring": _room("recorder, sampler, timeline, accounts, progress", "ground"),
    "parallel": _room("the hosts of a training and their messages; logical GPUs", "ground"),
    "zero_copy": _room("buffers shared by NumPy, TensorFlow and a GPU", "ground"),
    "models": _room("networks and data of the examples and benchmarks", "ground"),
    "_inspection": _room(
        "what a step reads, writes, draws and does, from its trace and its Python code; kept traces",
    ),
    "_keras": _room("the only door to Keras's private names"),
    "ground": _room(
        "what all others speak of: what users set, what they get, the exceptions; checks, files and locks",
        parts="options records errors _support",
    ),
}
_ROOM_OF_PART = {part: name for name, room in ROOMS.items() for part in room.parts or (name,)}


def room_of(path: Path) -> str:
    """Return the room in which a source file lies.

    Raises:
        KeyError: no room has it.
    """
    if path == ROOT / "parallel" / "__init__.py":  # only says where names are, some of them floors above
        return "face"
    return _ROOM_OF_PART[path.relative_to(ROOT).parts[0].removesuffix(".py")]


def rooms_imported_by(path: Path) -> set[str]:
    """Return the rooms whose code a source file imports, perhaps its own among them."""
    modules = [name.split(".")[1:] for name in imported_modules(path)]
    return {room_of(_file_of(parts)) for parts in modules}


def _file_of(parts: list[str]) -> Path:
    """Return the source file that defines what has a dotted name."""
    for count in range(len(parts), 0, -1):
        path = ROOT.joinpath(*parts[:count])
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file.exists():
                return file
    return ROOT / "__init__.py"


@functools.cache
def nodes_of(path: Path) -> list[ast.AST]:
    """Return all nodes of the syntax tree of a source file."""
    return list(ast.walk(ast.parse(path.read_text())))


def imported_modules(path: Path) -> Iterator[str]:
    """Return the dotted names of what a source file imports of the package."""
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import hides which room is meant"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name for name in names if name.split(".")[0] == "overlap_train")


def floors() -> dict[str, int]:
    """Return the floor of each room, from 1 on the ground.

    Raises:
        ValueError: some rooms import each other in a circle.
    """
    found: dict[str, int] = {}
    while len(found) < len(ROOMS):
        ready = [name for name, room in ROOMS.items() if name not in found and room.imports <= found.keys()]
        if not ready:
            raise ValueError(f"these rooms import each other in a circle: {sorted(ROOMS.keys() - found)}")
        found |= {name: 1 + max((found[i] for i in ROOMS[name].imports), default=0) for name in ready}
    return found


def table() -> str:
    """Return the page of the rooms, in Markdown."""
    lines = [
        "# Rooms",
        "",
        "**Which part of the package may import which?** A room is a folder of `overlap_train/`, or a few",
        "folders and modules of one idea. Each imports only rooms below it; a name that begins with an",
        "underscore is private. The table comes from `tests/rooms.py`; `tests/test_rooms.py` checks sources",
        "against it, and `python -m tests.rooms` writes this page.",
        "",
        "| floor | room | consists of | holds | may import |",
        "|---|---|---|---|---|",
    ]
    where = floors()
    for name in sorted(ROOMS, key=lambda name: (-where[name], name)):
        room = ROOMS[name]
        parts = ", ".join(f"`{p}/`" if (ROOT / p).is_dir() else f"`{p}.py`" for p in room.parts or (name,))
        imports = ", ".join(i.strip("_") for i in sorted(room.imports)) or "no other room"
        lines.append(f"| {where[name]} | {name.strip('_')} | {parts} | {room.holds} | {imports} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(table())
