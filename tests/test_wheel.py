"""The wheel, in an environment that holds nothing but what it requires, trains."""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest
from packaging.requirements import Requirement

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


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel, built from a copy of what it is made of."""
    source, built = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("built")
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("overlap_train", "scripts", "tests"):
        shutil.copytree(ROOT / name, source / name, ignore=ignored)
    options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", str(built)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(source)], check=True, timeout=120)
    return next(built.glob("*.whl"))


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


def test_the_wheel_brings_the_command(wheel):
    with zipfile.ZipFile(wheel) as file:
        name = next(name for name in file.namelist() if name.endswith("entry_points.txt"))
        assert "overlap-train = overlap_train.cli.main:main" in file.read(name).decode()


def test_the_wheel_holds_the_package_and_nothing_beside_it(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"overlap_train"}
    assert not [name for name in names if "bench" in name or "test_" in name]
    assert "overlap_train/py.typed" in names
    assert "overlap_train/conv/native/ops.cc" in names


@pytest.mark.timeout(240)
def test_the_wheel_trains_where_no_extra_is_installed(wheel, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env")], check=True)
    python = tmp_path / "env" / "bin" / "python"
    packages = next((tmp_path / "env" / "lib").glob("python3*")) / "site-packages"
    zipfile.ZipFile(wheel).extractall(packages)
    (own,) = importlib.metadata.distributions(path=[str(packages)])
    for distribution in required(own.requires or ()).values():
        link(distribution, packages)
    done = subprocess.run(
        [str(python), "-I", "-c", PROGRAM.replace("EXTRAS", repr(EXTRAS))],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.endswith("trained\n")
