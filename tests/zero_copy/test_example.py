"""The example, shrunk."""

import importlib.util
import sys
from pathlib import Path

import pytest


@pytest.fixture
def example():
    path = Path(__file__).parents[2] / "examples" / "zero_copy_inference.py"
    spec = importlib.util.spec_from_file_location("zero_copy_inference", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_example_copies_nothing_and_classifies_alike(example, capsys):
    copy, shared = example.main(["--runs", "2", "--size", "32", "--device", "CPU:0"])
    assert (copy.name, copy.bytes_copied) == ("copy", 32 * 32 * 3 * 4)
    assert (shared.name, shared.bytes_copied) == ("zero_copy", 0)
    assert len(shared.seconds) == 2
    assert "not measured" in shared.energy
    assert "0 bytes copied" in capsys.readouterr().out


def test_energy_is_reported_as_missing_with_reasons(example, monkeypatch):
    monkeypatch.setattr(
        example.energy, "measure", lambda run: ([], [example.energy.Unavailable("RAPL", "none")])
    )
    assert example._energy(lambda: None, True) == "unavailable: RAPL: none"
