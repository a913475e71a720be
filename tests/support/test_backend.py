"""Keras on another backend than TensorFlow is refused by name, whatever takes a model or routes a call."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import keras
import pytest

from overlap_train import Trainer, accelerate, install, routed
from overlap_train._support.imports import configured_backend, require_tensorflow
from overlap_train.scheduling import MultiModelScheduler
from tests.pools import sequential

TAKERS = {
    "Trainer": lambda: Trainer(sequential()),
    "routed": lambda: routed().__enter__(),
    "install": install,
    "accelerate": lambda: accelerate(sequential()),
    "MultiModelScheduler": lambda: MultiModelScheduler({"net": sequential()}),
}


@pytest.mark.parametrize("backend", ["jax", "torch", "openvino", "numpy"])
@pytest.mark.parametrize("name", TAKERS)
@pytest.mark.by_default(each_value=True)
def test_another_backend_is_refused_by_name(name, backend, monkeypatch):
    model = sequential()
    require_tensorflow()
    monkeypatch.setattr(keras.config, "backend", lambda: backend)
    with pytest.raises(RuntimeError, match=f"the backend '{backend}'.*set KERAS_BACKEND=tensorflow before"):
        TAKERS[name]()
    assert model.optimizer.iterations == 0


@pytest.mark.parametrize(
    ("variable", "file", "expected"),
    [
        (None, None, "tensorflow"),
        ("jax", '{"backend": "torch"}', "jax"),
        (None, '{"backend": "torch"}', "torch"),
        (None, "{}", "tensorflow"),
        (None, "no JSON", "tensorflow"),
        (None, "[]", "tensorflow"),
    ],
)
def test_a_backend_is_asked_for_in_the_environment_or_in_a_file(
    variable, file, expected, monkeypatch, tmp_path
):
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    if variable is not None:
        monkeypatch.setenv("KERAS_BACKEND", variable)
    if file is not None:
        (tmp_path / "keras.json").write_text(file)
    assert configured_backend() == expected


def on_backend(backend, program):
    """Returns what a program prints in a process whose Keras is to run on a backend."""
    env = os.environ | {"KERAS_BACKEND": backend}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_backend_that_cannot_be_imported_is_named_too():
    program = """
import overlap_train
try:
    from overlap_train import Trainer
except ImportError as error:
    print(error)
"""
    said = on_backend("absent", program)
    assert "Keras runs on the backend 'absent'" in said
    assert "set KERAS_BACKEND=tensorflow before keras is imported" in said


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_a_fit_on_another_backend_begins_nothing(backend, tmp_path):
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    program = f"""
import pathlib, keras, numpy as np
from overlap_train import Trainer, routed
x = np.ones((16, 3), "float32")
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
run = pathlib.Path({str(tmp_path / "run")!r})
for verbose in (0, 1):
    try:
        Trainer(model).fit(x, x[:, :1], verbose=verbose, resume=run)
    except RuntimeError as error:
        print(error)
try:
    with routed(resume=run):
        model.fit(x, x[:, :1])
except RuntimeError as error:
    print(error)
print(int(model.optimizer.iterations), run.exists())
"""
    *said, last = on_backend(backend, program).splitlines()
    assert [f"the backend {backend!r}" in line for line in said] == [True] * 3
    assert last == "0 False"
