"""Each example opens with its run command and runs, shrunk: it leaves the files that it names."""

import importlib.util
import json
import os
import signal
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from absl import app, flags

from overlap_train.models import mnist_data
from tests import interpreters

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def load(monkeypatch):
    """Returns what imports an example; the flags that it defines are gone after the test."""
    before = set(flags.FLAGS)

    def by_name(name):
        spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)  # where a dataclass looks its module up
        spec.loader.exec_module(module)
        return module

    yield by_name
    for name in set(flags.FLAGS) - before:
        delattr(flags.FLAGS, name)


def test_every_example_opens_with_its_command():
    for path in EXAMPLES.glob("*.py"):
        assert f".venv/bin/python examples/{path.name}" in path.read_text(), path.name


def test_mnist_overlap_writes_what_it_names(load, tmp_path, monkeypatch, capsys):
    example = load("mnist_overlap")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("TFDS_DATA_DIR", raising=False)
    digits = mnist_data.load_mnist(download=False)
    monkeypatch.setattr(example, "load_mnist", lambda _: digits)
    output_dir = tmp_path / "out"
    arguments = ["--epochs=2", f"--output_dir={output_dir}", "--replicate_to_mib=2", "--verbose=2"]
    flags.FLAGS(["example", *arguments])
    example.main(["example"])
    printed = capsys.readouterr().out
    assert "Data: scikit-learn's handwritten digits" in printed
    assert (output_dir / "timeline.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((output_dir / "trace.json").read_text())
    assert (output_dir / "best.keras").stat().st_size > 0
    assert list((output_dir / "tensorboard").rglob("events.*"))
    for name in ("timeline.png", "trace.json", "best.keras", "tensorboard"):
        assert str(output_dir / name) in printed
    with pytest.raises(app.UsageError, match="stray"):
        example.main(["example", "stray"])


@pytest.fixture
def custom_evaluation(load, monkeypatch):
    """The example on few digits."""
    example = load("custom_evaluation")
    digits = mnist_data._embedded_digits("a test needs no more")
    monkeypatch.setattr(example, "load_mnist", lambda _: digits)
    flags.FLAGS(["example", "--epochs=2"])
    return example


@pytest.mark.nightly
def test_custom_evaluation_tells_of_every_epoch(custom_evaluation, capsys):
    custom_evaluation.main(["example"])
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


def test_custom_evaluation_ends_in_order_when_it_is_interrupted(custom_evaluation, monkeypatch, capsys):
    monkeypatch.setattr(custom_evaluation.keras.callbacks, "EarlyStopping", Interrupts)
    # A shell has those that it starts in the background ignore it, and they have their children.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        custom_evaluation.main(["example"])
    finally:
        signal.signal(signal.SIGINT, before)
    assert "the worst digit" not in capsys.readouterr().out


def test_unet_tiled_draws_shapes_that_are_what_their_masks_say(load):
    example = load("unet_tiled")
    data = example.draw_shapes(20, 24, 31, seed=1)
    assert data.name == "drawn shapes"
    assert data.images.shape == (20, 24, 31, 3)
    assert set(np.unique(data.masks)) == {0, 1, 2}
    np.testing.assert_array_equal(data.images, example.draw_shapes(20, 24, 31, seed=1).images)


@pytest.mark.nightly
def test_unet_tiled_saves_its_picture(tmp_path):
    sizes = ["--epochs=1", "--images=16", "--height=24", "--width=31", "--widths=4,8"]
    places = [f"--output_dir={tmp_path}", f"--data_dir={tmp_path}"]
    environment = os.environ | {"MPLBACKEND": "Agg"}
    result = interpreters.run([EXAMPLES / "unet_tiled.py", *sizes, *places], env=environment, check=True)
    assert "mean IoU:" in result.stdout
    assert "drawn shapes" in result.stdout
    assert (tmp_path / "predictions.png").stat().st_size > 1000


@pytest.mark.nightly
@pytest.mark.parametrize("one_at_a_time", [False, True])
@pytest.mark.by_default("True")
def test_multi_dnn_serves_everything_and_writes_a_timeline(load, one_at_a_time, tmp_path, capsys):
    path = tmp_path / ("timeline.png" if one_at_a_time else "timeline.json")
    arguments = ["--networks", "MobileNetV3Small", "--size", "32", "--requests", "4", "--timeline", str(path)]
    arguments += ["--one-at-a-time", "--cut", "2"] if one_at_a_time else []
    statistics = load("multi_dnn").main(arguments)
    assert statistics.models["MobileNetV3Small"].completed == 4
    assert "requests/s" in capsys.readouterr().out
    if one_at_a_time:
        assert path.read_bytes().startswith(b"\x89PNG")
        return
    events = json.loads(path.read_text())["traceEvents"]
    assert {event["args"]["device"] for event in events if event["ph"] == "X"} == {"CPU:0"}


@pytest.mark.nightly
def test_zero_copy_inference_copies_nothing_and_classifies_alike(load, capsys):
    copy, shared = load("zero_copy_inference").main(["--runs", "2", "--size", "32", "--device", "CPU:0"])
    assert (copy.name, copy.bytes_copied) == ("copy", 32 * 32 * 3 * 4)
    assert (shared.name, shared.bytes_copied) == ("zero_copy", 0)
    assert len(shared.seconds) == 2
    assert "not measured" in shared.energy
    assert "0 bytes copied" in capsys.readouterr().out
