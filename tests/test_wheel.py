"""The wheel, in an environment that holds nothing but what it requires, trains."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from overlap_train.conv.build import build
from overlap_train.conv.native_cache import bundle
from overlap_train.errors import NativeUnavailableError

ROOT = Path(__file__).parents[1]
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


def build_wheel(tmp_path_factory, prebuilt: Path | None = None) -> Path:
    """Builds the wheel from a copy of what it is made of, with a compiled convolution or none."""
    source, built = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("built")
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("overlap_train", "scripts", "tests"):
        shutil.copytree(ROOT / name, source / name, ignore=ignored)
    if prebuilt is not None:
        bundle(prebuilt, source / "overlap_train" / "conv" / "prebuilt")
    options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", str(built)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(source)], check=True, timeout=120)
    return next(built.glob("*.whl"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    return build_wheel(tmp_path_factory)


@pytest.fixture(scope="module")
def wheel_with_library(tmp_path_factory) -> Path:
    try:
        return build_wheel(tmp_path_factory, build())
    except NativeUnavailableError as error:
        pytest.skip(f"no native convolution here: {error}")


def required(metadata: Iterable[str]) -> dict[str, importlib.metadata.Distribution]:
    """What these requirements mean here, without extras that they do not name, and what that requires."""
    waiting, seen, found = list(metadata), set(), {}
    while waiting:
        requirement = Requirement(waiting.pop())
        if str(requirement) in seen or (
            requirement.marker and not requirement.marker.evaluate({"extra": ""})
        ):
            continue
        seen.add(str(requirement))
        distribution = found[requirement.name] = importlib.metadata.distribution(requirement.name)
        assert requirement.specifier.contains(distribution.version, prereleases=True), requirement
        for extra in ("", *requirement.extras):
            waiting += [
                str(_without_marker(needed))
                for needed in map(Requirement, distribution.requires or [])
                if needed.marker is None or needed.marker.evaluate({"extra": extra})
            ]
    return found


def _without_marker(requirement: Requirement) -> Requirement:
    requirement.marker = None
    return requirement


def link(distribution: importlib.metadata.Distribution, packages: Path) -> None:
    """Puts what a distribution installed into another environment."""
    for name in {Path(file).parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
        place = packages / name
        if not place.exists():
            place.symlink_to(Path(distribution.locate_file(name)).resolve())


@pytest.mark.nightly
def test_the_wheel_brings_the_command(wheel):
    with zipfile.ZipFile(wheel) as file:
        name = next(name for name in file.namelist() if name.endswith("entry_points.txt"))
        assert "overlap-train = overlap_train.cli.main:main" in file.read(name).decode()


@pytest.mark.nightly
def test_the_wheel_holds_the_package_and_nothing_beside_it(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"overlap_train"}
    assert not [name for name in names if "bench" in name or "test_" in name]
    assert "overlap_train/py.typed" in names
    assert "overlap_train/conv/native/ops.cc" in names


def install(wheel: Path, directory: Path) -> Path:
    """Installs a wheel and what it requires into an empty environment, and returns its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(directory)], check=True)
    packages = next((directory / "lib").glob("python3*")) / "site-packages"
    zipfile.ZipFile(wheel).extractall(packages)
    (own,) = importlib.metadata.distributions(path=[str(packages)])
    for distribution in required(own.requires or ()).values():
        link(distribution, packages)
    return directory / "bin" / "python"


def run(python: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs Python without the user's own packages, a compiler, or anything in the caches."""
    home = python.parents[2]
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "OVERLAP_TRAIN"))}
    environment |= {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache"), "CXX": "", "CMAKE": ""}
    return subprocess.run(
        [str(python), "-P", *arguments],
        cwd=home,
        env=environment | {"PATH": str(python.parent), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )


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
