"""Runs Keras's own tests of `fit` and of its callbacks, stock and then with `fit` routed through `Trainer`.

Run it by `scripts/keras_suite.sh`. The tests come from the source distribution of the installed Keras and are
not kept in this repository. A test counts for us if stock Keras passes it here; those that Keras skips or
fails on this machine are left out.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
# What Keras's tests import and this project does not need, without its own dependencies, which are here.
NEEDED = ("jax", "jaxlib", "opt_einsum")


def main() -> int:
    """Prints how many of the tests that stock Keras passes pass routed; returns 1 unless all do."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--directory", type=Path, default=HERE.parent / ".keras_suite", help="for downloads and results"
    )
    parser.add_argument("--tests", default="", help="only tests whose names match, as pytest's -k")
    parser.add_argument(
        "--routed-only", action="store_true", help="compare with the stock results of the last run"
    )
    options = parser.parse_args()
    version = importlib.metadata.version("keras")
    place = options.directory.resolve() / version
    tests = fetch_tests(place, version)
    stock = place / "stock.json"
    if not (options.routed_only and stock.exists()):
        run(tests, place, stock, options.tests, routed=False)
    run(tests, place, place / "routed.json", options.tests, routed=True)
    expected = json.loads(stock.read_text())
    actual = json.loads((place / "routed.json").read_text())
    wanted = sorted(
        name
        for name, outcome in expected.items()
        if outcome == "passed" and (not options.tests or name in actual)
    )
    failed = [name for name in wanted if actual.get(name) != "passed"]
    for name in failed:
        print(f"differs: {name} ({actual.get(name, 'not run')})")
    print(
        f"Keras {version}: {len(wanted) - len(failed)} of {len(wanted)} tests that stock Keras passes "
        "pass routed"
    )
    return 1 if failed or not wanted else 0


def fetch_tests(place: Path, version: str) -> Path:
    """Downloads Keras's source distribution and lays its tests out as plain modules."""
    tests = place / "tests"
    if tests.exists():
        return tests
    place.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "install", "--quiet", "--no-deps", "--target", place / "packages", *NEEDED], check=True
    )
    subprocess.run(
        [
            *pip,
            "download",
            "--quiet",
            "--no-deps",
            "--no-binary",
            "keras",
            "--dest",
            place,
            f"keras=={version}",
        ],
        check=True,
    )
    (archive,) = place.glob("keras-*.tar.gz")
    laid_out = place / "laid_out"
    laid_out.mkdir(exist_ok=True)
    with tarfile.open(archive) as source:
        for member in source.getmembers():
            path = Path(member.name)
            folder, name = path.parent.name, path.name
            if (name == "trainer_test.py" and folder == "trainers") or (
                folder == "callbacks" and name.endswith("_test.py")
            ):
                content = source.extractfile(member)
                assert content is not None
                # Outside Keras's package, as a user's code is.
                (laid_out / f"suite_{name}").write_bytes(content.read())
    laid_out.rename(tests)
    return tests


def run(tests: Path, place: Path, outcomes: Path, chosen: str, *, routed: bool) -> None:
    """Runs the tests in a process of their own and writes each one's outcome."""
    environment = os.environ | {
        "KERAS_BACKEND": "tensorflow",
        "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent)]),
        "KERAS_SUITE_OUTCOMES": str(outcomes),
        "KERAS_SUITE_PACKAGES": str(place / "packages"),
        "KERAS_SUITE_ROUTED": "1" if routed else "",
        "CUDA_VISIBLE_DEVICES": "",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "MPLBACKEND": "Agg",
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-c",
        os.devnull,
        "--rootdir",
        str(tests),
        "-p",
        "keras_suite_plugin",
    ]
    command += ["-p", "no:cacheprovider", "--timeout", "300", "--disable-warnings", "--no-header"]
    log = outcomes.with_suffix(".log")
    with log.open("w") as file:
        subprocess.run(
            [*command, *(["-k", chosen] if chosen else []), str(tests)],
            env=environment,
            stdout=file,
            stderr=file,
        )
    print(f"{'routed' if routed else 'stock'}: {log.read_text().splitlines()[-1]} (log in {log})")


if __name__ == "__main__":
    sys.exit(main())
