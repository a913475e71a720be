"""The example, shrunk: it runs to its end and tells of every epoch."""

import importlib.util
import signal
from pathlib import Path

import keras
import pytest
from absl import flags

from overlap_train.models import mnist_data

EXAMPLE = Path(__file__).parents[2] / "examples" / "custom_evaluation.py"


@pytest.fixture(scope="module")
def example():
    specification = importlib.util.spec_from_file_location("custom_evaluation", EXAMPLE)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    yield module
    for name in flags.FLAGS.flags_by_module_dict().pop("custom_evaluation", ()):
        delattr(flags.FLAGS, name.name)


def test_example_tells_of_every_epoch(example, monkeypatch, capsys):
    digits = mnist_data._embedded_digits("a test needs no more")
    monkeypatch.setattr(example, "load_mnist", lambda _: digits)
    flags.FLAGS(["example", "--epochs=2"])
    example.main(["example"])
    printed = capsys.readouterr().out
    assert "epoch 1: the worst digit" in printed
    assert "epoch 2: the worst digit" in printed


class Interrupts(keras.callbacks.Callback):
    """Stands for Ctrl-C in the first epoch, before there is a validation."""

    def __init__(self, *_, **__):
        super().__init__()

    def on_train_batch_end(self, batch, logs=None):
        if batch == 0:
            signal.raise_signal(signal.SIGINT)


@pytest.fixture
def sigint_is_heard():
    """A shell has those that it starts in the background ignore it, and they have their children."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("sigint_is_heard")
def test_an_interrupted_example_ends_in_order(example, monkeypatch, capsys):
    digits = mnist_data._embedded_digits("a test needs no more")
    monkeypatch.setattr(example, "load_mnist", lambda _: digits)
    monkeypatch.setattr(example.keras.callbacks, "EarlyStopping", Interrupts)
    flags.FLAGS(["example", "--epochs=2"])
    example.main(["example"])
    assert "the worst digit" not in capsys.readouterr().out
