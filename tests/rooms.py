"""The rooms of the house: what each holds, on which floor, and whose code it may import.

A room is a folder or a module of `overlap_train/`. `test_rooms.py` holds the sources to this table, and
`docs/internals/rooms.md` is written from it by `python -m tests.rooms`.
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
    """What a room holds, and the rooms below it whose code it may import."""

    holds: str
    imports: frozenset[str] = frozenset()


def _room(holds: str, imports: str = "") -> Room:
    return Room(holds, frozenset(imports.split()))


# From the roof to the ground.
ROOMS = {
    "__init__": _room(
        "the names that users import, those of `parallel` too",
        "_callbacks _fit _support conv errors options parallel records routing trainer",
    ),
    "cli": _room(
        "the command `overlap-train`", "_keras _support conv errors options parallel records routing trainer"
    ),
    "routing": _room(
        "`routed()`: sends `keras.Model.fit` through `Trainer`", "_keras _support options trainer"
    ),
    "trainer": _room(
        "`Trainer`: what a user calls and subclasses",
        "_fit _keras _support _training monitoring options records",
    ),
    "_fit": _room(
        "one `fit`: built, run epoch by epoch, delivered; the only room that knows all stages",
        "_callbacks _checkpoint _data _inspection _keras _snapshot _support _training _validation errors "
        "monitoring options parallel records",
    ),
    "_validation": _room(
        "how a snapshot is evaluated: workers, shards, order, merging; functions and their private models",
        "_data _inspection _keras _snapshot _support _training errors options parallel records",
    ),
    "_training": _room(
        "the step, its compiled loops, plans and faster operations; the step on replicas",
        "_data _inspection _keras _support conv options parallel records",
    ),
    "_checkpoint": _room(
        "the file of a checkpoint, and what goes into it; the directory of an evaluator",
        "_callbacks _copies _data _inspection _keras _snapshot _support errors options records",
    ),
    "_callbacks": _room(
        "which callback listens to what, delivery, the state of callbacks",
        "_copies _inspection _keras _snapshot _support records",
    ),
    "_data": _room(
        "arrays, pipelines and generators; positions in them; shards", "_inspection _keras _support zero_copy"
    ),
    "conv": _room("the tiled convolution, compiled for CPU and CUDA", "_keras _support errors options"),
    "scheduling": _room(
        "several networks at once, layer by layer", "_keras _support conv errors records zero_copy"
    ),
    "_copies": _room(
        "plain values of Python objects: copied, put back in their places, packed for a file",
        "_keras",
    ),
    "_snapshot": _room("one immutable version of the state from which training continues", "_inspection"),
    "monitoring": _room("recorder, sampler, timeline, accounts, progress", "_support records"),
    "options": _room("what users set: policies, plans, threads", "_support"),
    "parallel": _room("the hosts of a training and their messages; logical GPUs", "_support errors"),
    "zero_copy": _room("buffers shared by NumPy, TensorFlow and a GPU", "_support errors"),
    "models": _room("networks and data of the examples and benchmarks", "_support errors"),
    "_inspection": _room(
        "what a step reads, writes, draws and does, from its trace and its Python code; kept traces",
    ),
    "_keras": _room("the only door to Keras's private names"),
    "_support": _room("checks of arguments, files and locks, caches, closing, extras"),
    "errors": _room("the exceptions"),
    "records": _room("frozen records that cross threads", "_support"),
}


def room_of(path: Path) -> str:
    """Return the room in which a source file lies."""
    if path == ROOT / "parallel" / "__init__.py":  # only says where names are, some of them floors above
        return "__init__"
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


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
        "**Which part of the package may import which?** A room is a folder or a module of `overlap_train/`.",
        "Each imports only rooms below it; a name that begins with an underscore is private. The table comes",
        "from `tests/rooms.py`. `tests/test_rooms.py` checks the sources against it, and",
        "`python -m tests.rooms` writes this page.",
        "",
        "| floor | room | holds | may import |",
        "|---|---|---|---|",
    ]
    where = floors()
    for name in sorted(ROOMS, key=lambda name: (-where[name], name)):
        room, folder = ROOMS[name], (ROOT / name).is_dir()
        imports = ", ".join(f"`{i}`" for i in sorted(room.imports)) or "no other room"
        lines.append(f"| {where[name]} | `{name}{'/' if folder else '.py'}` | {room.holds} | {imports} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(table())
