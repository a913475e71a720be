"""Each example opens with its run command; that each runs, shrunk, is tested in tests/examples/."""

from __future__ import annotations

from pathlib import Path

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_every_example_opens_with_its_command():
    for path in EXAMPLES.glob("*.py"):
        assert f".venv/bin/python examples/{path.name}" in path.read_text(), path.name
