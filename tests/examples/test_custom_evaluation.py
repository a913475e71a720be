"""The example, shrunk: it runs to its end and tells of every epoch."""

import importlib.util
from pathlib import Path

import pytest
from absl import flags

from overlap_train.models.mnist_data import load_mnist

EXAMPLE = Path(__file__).parents[2] / "examples" / "custom_evaluation.py"


@pytest.fixture
def example():
    specification = importlib.util.spec_from_file_location("custom_evaluation", EXAMPLE)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    yield module
    for name in flags.FLAGS.flags_by_module_dict().pop("custom_evaluation", ()):
        delattr(flags.FLAGS, name.name)


def test_example_tells_of_every_epoch(example, monkeypatch, capsys):
    digits = load_mnist(download_timeout_s=0)
    monkeypatch.setattr(example, "load_mnist", lambda _: digits)
    flags.FLAGS(["example", "--epochs=2"])
    example.main(["example"])
    printed = capsys.readouterr().out
    assert "epoch 1: the worst digit" in printed
    assert "epoch 2: the worst digit" in printed
