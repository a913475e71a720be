"""The wheel, built from a copy, and environments that hold nothing but what it requires."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement

from overlap_train.conv.native_cache import bundle

ROOT = Path(__file__).parents[1]


def build_wheel(folder: Path, prebuilt: Path | None = None) -> Path:
    """Builds the wheel from a copy of what it is made of, with a compiled convolution or none."""
    source, built = folder / "source", folder / "built"
    source.mkdir()
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


def required(metadata: Iterable[str], *extras: str) -> dict[str, importlib.metadata.Distribution]:
    """What these requirements mean here, with those of some extras, and what that requires."""
    waiting, seen, found = list(metadata), set(), {}
    while waiting:
        requirement = Requirement(waiting.pop())
        marker = requirement.marker
        if str(requirement) in seen or (
            marker and not any(marker.evaluate({"extra": extra}) for extra in ("", *extras))
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


def install(wheel: Path, directory: Path, *extras: str) -> Path:
    """Installs a wheel and what it and some extras require into an empty environment; returns its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(directory)], check=True)
    packages = next((directory / "lib").glob("python3*")) / "site-packages"
    zipfile.ZipFile(wheel).extractall(packages)
    (own,) = importlib.metadata.distributions(path=[str(packages)])
    for distribution in required(own.requires or (), *extras).values():
        link(distribution, packages)
    python, command = directory / "bin" / "python", directory / "bin" / "overlap-train"
    command.write_text(
        f"#!{python} -P\nimport sys\nfrom overlap_train.cli.main import main\nsys.exit(main())\n"
    )
    command.chmod(0o755)
    return python


def environment(python: Path) -> dict[str, str]:
    """The environment of a process without the user's own packages, a compiler, or anything in the caches."""
    home = python.parents[2]
    own = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "OVERLAP_TRAIN"))}
    own |= {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache"), "CXX": "", "CMAKE": ""}
    return own | {"PATH": str(python.parent), "CUDA_VISIBLE_DEVICES": ""}


def run(python: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs Python there, in the folder that holds its environment."""
    return subprocess.run(
        [str(python), "-P", *arguments],
        cwd=python.parents[2],
        env=environment(python),
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
