"""The wheel, in an environment that holds nothing but what it requires, trains."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from overlap_train.conv.build import build
from overlap_train.errors import NativeUnavailableError
from tests.wheels import build_wheel, install, run

EXTRAS = ("matplotlib", "PIL", "pytest", "scipy", "sklearn", "tensorboard", "yaml")

PROGRAM = """
import importlib.util, pathlib, sys
import numpy as np

here = pathlib.Path(sys.prefix).resolve()
import overlap_train
assert here in pathlib.Path(overlap_train.__file__).resolve().parents, overlap_train.__file__
for name in EXTRAS:
    assert importlib.util.find_spec(name) is None, name

import keras
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
model.compile("adam", "mse")
x, y = np.ones((64, 4), "float32"), np.ones((64, 3), "float32")
trainer = overlap_train.Trainer(model)
history = trainer.fit(x, y, epochs=2, batch_size=8, validation_data=(x, y), verbose=0, resume="run")
assert len(history.history["val_loss"]) == 2, history.history

from overlap_train import conv, models, monitoring, parallel, scheduling, zero_copy
from overlap_train.monitoring import save_timeline
try:
    save_timeline("timeline.png", [])
except ModuleNotFoundError as error:
    assert "pip install matplotlib" in str(error), error
else:
    raise AssertionError("without matplotlib there is a timeline")
print("trained")
"""


# Where no compiler is found and nothing has been cached.
CONVOLUTION = """
from overlap_train.conv import library
print(library.is_built(), library.is_available())
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def wheel_with_library(tmp_path_factory) -> Path:
    try:
        return build_wheel(tmp_path_factory.mktemp("wheel"), build())
    except NativeUnavailableError as error:
        pytest.skip(f"no native convolution here: {error}")


@pytest.mark.nightly
def test_the_wheel_holds_the_package_and_nothing_beside_it(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"overlap_train"}
    assert not [name for name in names if "bench" in name or "test_" in name]
    assert "overlap_train/py.typed" in names
    assert "overlap_train/conv/native/ops.cc" in names
    (entries,) = (name for name in names if name.endswith("entry_points.txt"))
    assert b"overlap-train = overlap_train.cli.main:main" in zipfile.ZipFile(wheel).read(entries)


@pytest.mark.timeout(240)
def test_the_wheel_trains_where_no_extra_is_installed(wheel, tmp_path):
    done = run(install(wheel, tmp_path / "env"), "-c", PROGRAM.replace("EXTRAS", repr(EXTRAS)))
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.endswith("trained\n")


@pytest.mark.nightly
@pytest.mark.by_default("wheel-False")
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("kind", "there"), [("wheel_with_library", True), ("wheel", False)])
def test_the_doctor_agrees_with_what_the_wheel_has_brought(kind, there, request, tmp_path):
    """Nothing has to be mended where optional parts are missing."""
    python = install(request.getfixturevalue(kind), tmp_path / "env")
    loaded = run(python, "-c", CONVOLUTION)
    assert loaded.stdout.split()[-2:] == [str(there)] * 2, loaded.stderr[-4000:]
    doctor = run(python, "-m", "overlap_train.cli", "doctor", "--json")
    assert doctor.returncode == 0, doctor.stdout[-4000:] + doctor.stderr[-4000:]
    sections = json.loads(doctor.stdout)["sections"]
    assert sections["compiled convolution"][0]["value"] is there
