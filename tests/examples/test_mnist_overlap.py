"""The example, shrunk: it runs to its end and leaves the files that it names."""

import importlib.util
import json
from pathlib import Path

import pytest
from absl import flags

EXAMPLE = Path(__file__).parents[2] / "examples" / "mnist_overlap.py"


@pytest.fixture(scope="module")
def example():
    specification = importlib.util.spec_from_file_location("mnist_overlap", EXAMPLE)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    yield module
    for name in flags.FLAGS.flags_by_module_dict().pop("mnist_overlap", ()):
        delattr(flags.FLAGS, name.name)


def test_example_writes_what_it_names(example, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("TFDS_DATA_DIR", raising=False)
    monkeypatch.setattr(example, "load_mnist", lambda _: real_digits())
    output_dir = tmp_path / "out"
    flags.FLAGS(
        ["example", "--epochs=2", f"--output_dir={output_dir}", "--replicate_to=1500KB", "--verbose=2"]
    )
    example.main(["example"])
    printed = capsys.readouterr().out
    assert "Data: scikit-learn's handwritten digits" in printed
    assert (output_dir / "timeline.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((output_dir / "trace.json").read_text())
    assert (output_dir / "best.keras").stat().st_size > 0
    assert list((output_dir / "tensorboard").rglob("events.*"))
    for name in ("timeline.png", "trace.json", "best.keras", "tensorboard"):
        assert str(output_dir / name) in printed


def test_example_refuses_stray_arguments(example):
    from absl import app

    flags.FLAGS(["example"])
    with pytest.raises(app.UsageError, match="stray"):
        example.main(["example", "stray"])


def real_digits():
    from overlap_train.models.mnist_data import load_mnist

    return load_mnist(download_timeout_s=0)
