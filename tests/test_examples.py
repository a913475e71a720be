"""The example runs, shrunk to seconds, and writes what it says."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from pathlib import Path

import pytest
from absl import flags
from absl.testing import flagsaver

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture
def example(monkeypatch):
    """Loads an example; its flags are gone afterwards, so that another may define the same."""
    names = set(flags.FLAGS)
    spec = importlib.util.spec_from_file_location("mnist_overlap", EXAMPLES / "mnist_overlap.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    for name in set(flags.FLAGS) - names:
        delattr(flags.FLAGS, name)


def test_mnist_overlap(example, monkeypatch, tmp_path, capsys):
    load = example.load_mnist

    def few(data_dir):
        digits = load(data_dir)
        rows = {"x_train": 256, "y_train": 256, "x_test": 64, "y_test": 64}
        return dataclasses.replace(digits, **{name: getattr(digits, name)[:n] for name, n in rows.items()})

    monkeypatch.setattr(example, "load_mnist", few)
    if not flags.FLAGS.is_parsed():
        flags.FLAGS(["mnist_overlap"])
    with flagsaver.flagsaver(epochs=1, threads=2, verbose="2", output_dir=str(tmp_path / "run")):
        example.main(["mnist_overlap"])
    output = capsys.readouterr().out
    assert "Data: " in output
    for name in ("timeline.png", "trace.json", "best.keras", "tensorboard"):
        assert (tmp_path / "run" / name).exists(), name
        assert name in output
    names = {
        event["name"] for event in json.loads((tmp_path / "run" / "trace.json").read_text())["traceEvents"]
    }
    assert any(name.startswith("train") for name in names)
    assert any(name.startswith("validate") for name in names)


def test_every_example_opens_with_its_command():
    for path in EXAMPLES.glob("*.py"):
        assert f".venv/bin/python examples/{path.name}" in path.read_text(), path.name
