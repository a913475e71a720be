"""Keras's and TensorFlow's private modules are imported by the doors alone."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import overlap_train

ROOT = Path(overlap_train.__file__).parent


DOORS = {
    "keras.src": set(),  # `_keras/names.py` alone imports from it, by the names in its table
    "tensorflow.python": {
        "_keras/",
        "_inspection/effects.py",
        "_inspection/graph.py",
        "scheduling/preparing.py",
    },
}


@pytest.mark.parametrize("private", DOORS)
def test_no_other_module_imports_private_modules(private):
    through = set()
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(name.startswith(private) for name in names):
                place = path.relative_to(ROOT)
                through.add("_keras/" if place.parts[0] == "_keras" else place.as_posix())
    assert through == DOORS[private]
