"""Who may import whom: the last column of the table in docs/design, checked on the sources.

Stated departures from the table: `training/` and `validation/` read feeds and shards, so they may import
`data/`, which makes tensors of arrays by `zero_copy/`; `parallel/` builds training steps, so it may import
`training/`, and so may `validation/`, whose steps hand on logs as training steps do; `joining.py` asks it
about layers; `lag.py` judges what monitoring has measured and what a traced step does; `assembly.py`,
`parts.py`, `opening.py`, `session.py`, `following.py` which lets a session follow another host's, and
`serving.py` which lets another host validate for it, stand beside `trainer.py` as those that know every
stage; every stage that reads Keras's private side goes through the doors `_keras.py`,
`_keras_copies.py` and `_keras_replicas.py`; every one that asks a trace what it does, through `_inspection/`,
which knows nothing of ours.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import overlap_train

ROOT = Path(overlap_train.__file__).parent
STAGES = {"data", "training", "snapshot", "validation", "callbacks", "monitoring", "arguments"}
LEAVES = {"cached_files", "configuration", "errors", "records", "interrupts"}

MAY_IMPORT = {
    "__init__": {
        "_moved",
        "_version",
        "configuration",
        "conv",
        "errors",
        "records",
        "resume",
        "routing",
        "trainer",
        "training",
        "validation",
    },
    "_extras": set(),
    "_inspection": set(),
    "_keras": set(),
    "_keras_copies": set(),
    "_keras_replicas": set(),
    "_moved": set(),
    "_routing": {"_keras"},
    "_version": set(),
    "arguments": {"_keras"},
    "cached_files": set(),
    "callbacks": {"_keras", "errors", "records", "snapshot"},
    "checkpoint": {"arguments", "errors", "records", "snapshot"},
    "conv": {"_version", "arguments", "cached_files", "configuration", "errors"},
    "data": {"_extras", "_inspection", "_keras", "errors", "records", "zero_copy"},
    "errors": set(),
    "models": {"arguments"},
    "monitoring": {"_extras", "arguments", "records"},
    "parallel": {"_keras", "_keras_replicas", "arguments", "errors", "records", "training"},
    "configuration": {"arguments"},
    "following": {
        "_keras",
        "_version",
        "callbacks",
        "data",
        "parallel",
        "records",
        "resume",
        "snapshot",
        "validation",
    },
    "interrupts": set(),
    "kernels": {"_keras", "conv", "recurrent"},
    "joining": {"_keras", "training"},
    "lag": {"_keras", "callbacks", "data", "monitoring", "records", "training", "validation"},
    "opening": {"_keras", "callbacks"},
    "records": set(),
    "recurrent": set(),
    "resume": {"arguments", "callbacks", "checkpoint", "data", "errors", "snapshot"},
    "routing": {"_keras", "_routing", "arguments", "checkpoint", "trainer", "training", "validation"},
    "scheduling": {"_moved", "arguments", "errors", "records", "zero_copy"},
    "parts": {
        "callbacks",
        "data",
        "interrupts",
        "monitoring",
        "parallel",
        "resume",
        "snapshot",
        "training",
        "validation",
    },
    "session": {"_keras", "lag", "opening", "parallel", "parts", "resume", *LEAVES, *STAGES},
    "serving": {
        "_keras",
        "_version",
        "arguments",
        "checkpoint",
        "errors",
        "interrupts",
        "parallel",
        "records",
        "snapshot",
        "validation",
    },
    "snapshot": {"_inspection", "_keras", "records"},
    "assembly": {
        "_inspection",
        "_keras",
        "checkpoint",
        "kernels",
        "following",
        "joining",
        "lag",
        "parallel",
        "parts",
        "resume",
        "serving",
        *LEAVES,
        *STAGES,
    },
    "trainer": {
        "_keras",
        "_routing",
        "assembly",
        "opening",
        "parallel",
        "parts",
        "resume",
        "session",
        *LEAVES,
        *STAGES,
    },
    "training": {
        "_inspection",
        "_keras",
        "_keras_replicas",
        "_version",
        "arguments",
        "cached_files",
        "configuration",
        "data",
        "errors",
        "records",
    },
    "validation": {
        "_inspection",
        "_keras",
        "_keras_copies",
        "_routing",
        "arguments",
        "data",
        "errors",
        "parallel",
        "records",
        "snapshot",
        "training",
    },
    "zero_copy": {"arguments", "cached_files", "errors"},
}


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """Returns the rooms that a file imports, and "overlap_train" for the package itself."""
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import hides which room is meant"
            names = [node.module]
            if node.module == "overlap_train":
                names = [f"overlap_train.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "overlap_train":
                rooms.add(parts[1] if len(parts) > 1 else "overlap_train")
    return rooms


FILES = sorted(ROOT.rglob("*.py"))


def test_every_room_has_its_rule():
    assert {room_of(path) for path in FILES} <= set(MAY_IMPORT)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_room_imports_only_what_it_may(path):
    room = room_of(path)
    not_allowed = imported(path) - MAY_IMPORT[room] - {room}
    assert not not_allowed, f"{room} may not import {sorted(not_allowed)}"


def test_the_rooms_have_no_cycle():
    order, left = [], {room: {r for r in MAY_IMPORT[room] if r in MAY_IMPORT} for room in MAY_IMPORT}
    while left:
        free = [room for room, needs in left.items() if not needs - set(order)]
        assert free, f"these rooms import each other in a circle: {sorted(left)}"
        order += free
        for room in free:
            del left[room]
