"""Runs Keras's own tests of `fit` and of its callbacks, stock and then with `fit` routed through `Trainer`.

Run it by `scripts/keras_suite.sh`; with `--all` it runs every test of Keras that calls `fit` or `evaluate`:
those of layers, optimizers, metrics, saving and so on. The tests come from the source distribution of the
installed release and are not kept in this repository. A nightly build, found before it on PYTHONPATH, brings
none and gets those of the release. A test counts for us if stock Keras passes it here; those that Keras skips
or fails on this machine are left out.

Each test is given the same seed in both runs, and what its calls return, raise and leave in the variables is
compared besides the outcome: many tests look at a shape only.

The tests need no download beyond that. What needs PyTorch is not run: it is too large to be fetched for this.
"""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import importlib.util
import json
import math
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# What Keras's tests import and this project does not need, without its own dependencies, which are here.
NEEDED = ("jax", "jaxlib", "opt_einsum")
# What they test `fit` with besides, as far as it is small, and its dependencies.
BESIDES = (
    *("grain", "array-record", "etils", "cloudpickle", "portpicker", "importlib_resources", "fsspec", "zipp"),
    *("orbax-checkpoint", "tensorstore", "msgpack", "nest_asyncio", "aiofiles", "humanize", "simplejson"),
    *("psutil", "pyyaml"),
)
CALLS = re.compile(r"\.(fit|evaluate)\(|\brun_layer_test\(")
# Of other backends, whose tests would not run.
ELSEWHERE = ("backend/jax", "backend/torch", "backend/numpy", "backend/openvino")
# Tests of which an outcome or a number may differ, and why; docs/semantics.md says more.
_A_STEP_TOO_MANY = "Keras before 3.16 counts a step too many where data of unknown size ends (keras#23084)"
_ANY_RANK = "Keras traces a second shape for any rank, and fails; the trainer traces it as it is"
_TRAINER = "suite_trainers_trainer_test.py::TestTrainer::test_"
_STEPS = f"{_TRAINER}steps_per_execution_steps_"
_OPTIONAL = "suite_models_model_test.py::ModelTest::test_functional_optional_inputs_generator_optional_"
EXCEPTIONS: Mapping[str, str] = {
    f"{_TRAINER}for_eval_epoch_iterator": _ANY_RANK,
    **dict.fromkeys(
        [
            *(_OPTIONAL + kind for kind in ("none", "tensor")),
            *(f"{_TRAINER}fit_sparse_{kind}_graph" for kind in ("jax", "scipy", "tf")),
            *(f"{_STEPS}count_unknown_dataset_size_{count}_non_jit" for count in (3, 101)),
            f"{_STEPS}per_epoch_unknown_data_size_match_non_jit",
            f"{_STEPS}per_epoch_unknown_data_size_not_match_but_high_enough_non_jit",
        ],
        _A_STEP_TOO_MANY,
    ),
}
# Of numbers that two runs of one test may differ by: sums are taken in another order.
RELATIVE, ABSOLUTE = 1e-3, 1e-4
# Stock Keras is run again so often on a test of other numbers: some of its tests come to one or another.
AGAIN = 5


def main() -> int:
    """Prints how many of the tests that stock Keras passes pass routed; returns 1 unless all do."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--directory", type=Path, default=HERE.parent / ".keras_suite", help="for downloads and results"
    )
    parser.add_argument("--tests", default="", help="only tests whose names match, as pytest's -k")
    parser.add_argument(
        "--all", action="store_true", help="all tests that call fit or evaluate; an hour or so on two cores"
    )
    parser.add_argument("--family", nargs="*", help="with --all: only these, such as layers_core optimizers")
    parser.add_argument("--jobs", type=int, default=1, help="families at once (default: 1)")
    parser.add_argument("--timeout", type=float, default=3600, help="seconds for a family (default: 3600)")
    parser.add_argument("--resume", action="store_true", help="go on where the last run was cut off")
    options = parser.parse_args()
    version = installed_version()
    place = options.directory.resolve() / version
    tests = fetch_tests(place)
    families = {
        name: modules
        for name, modules in families_of(tests, everything=options.all).items()
        if not options.family or name in options.family
    }

    def compare(family: str) -> bool:
        stock, actual = place / f"{family}.stock.jsonl", place / f"{family}.routed.jsonl"
        if not options.resume:
            actual.unlink(missing_ok=True)
            stock.unlink(missing_ok=True)
        suite = Suite(place, tests, families[family], options.tests, options.timeout)
        suite.run(stock)
        suite.run(actual, stock, only_calling=options.all)
        repeated = functools.partial(repeats, suite, place / f"{family}.again.jsonl")
        return report(family, outcomes_of(stock), outcomes_of(actual), options, repeated)

    with ThreadPoolExecutor(options.jobs) as pool:
        same = list(pool.map(compare, families))
    print(f"Keras {version}: {sum(same)} of {len(same)} families of tests pass routed as they pass stock")
    return 0 if same and all(same) else 1


def report(
    family: str,
    expected: Mapping[str, dict[str, Any]],
    actual: Mapping[str, dict[str, Any]],
    options: argparse.Namespace,
    repeated: Callable[[str, Any], bool],
) -> bool:
    """Prints what differs in a family of tests; returns whether nothing does but what is known to."""
    wanted = sorted(
        name
        for name, result in expected.items()
        if result["outcome"] == "passed"
        and (not options.tests or name in actual)
        and (not options.all or result["calls"])
    )
    failed = [name for name in wanted if actual.get(name, {}).get("outcome") != expected[name]["outcome"]]
    for name in failed:
        reason = EXCEPTIONS.get(name)
        outcome = actual.get(name, {}).get("outcome", "not run")
        print(f"may differ: {name}: {reason}" if reason else f"differs: {name} ({outcome})")
    numbers = [name for name in wanted if name not in failed and name not in EXCEPTIONS]
    numbers = [name for name in numbers if first_difference(expected[name]["calls"], actual[name]["calls"])]
    drawn = [name for name in numbers if repeated(name, actual[name]["calls"])]
    for name in drawn:
        print(f"stock Keras gives one number or another: {name}")
    numbers = [name for name in numbers if name not in drawn]
    for name in numbers:
        print(f"other numbers: {name}: {first_difference(expected[name]['calls'], actual[name]['calls'])}")
    for name in wanted:
        for refusal in actual.get(name, {}).get("unrouted", ()):
            print(f"left to Keras: {name}: {refusal}")
    print(
        f"{family}: {len(wanted) - len(failed)} of {len(wanted)} tests that stock Keras passes pass routed",
        flush=True,
    )
    return bool(expected) and not numbers and all(name in EXCEPTIONS for name in failed)


def repeats(suite: Suite, journal: Path, name: str, calls: Any) -> bool:
    """Returns whether stock Keras, run again, comes to these calls of a test after all."""
    for _ in range(AGAIN):
        journal.unlink(missing_ok=True)
        suite.choosing(name).run(journal)
        again = outcomes_of(journal).get(name)
        if again is not None and first_difference(again["calls"], calls) is None:
            return True
    return False


def first_difference(expected: Any, actual: Any, where: str = "") -> str | None:
    """Returns where the calls of a test and what came of them differ, or None."""
    if isinstance(expected, float) and isinstance(actual, float):
        same = math.isclose(expected, actual, rel_tol=RELATIVE, abs_tol=ABSOLUTE) or expected == actual
        both_nan = math.isnan(expected) and math.isnan(actual)
        return None if same or both_nan else f"{where}: {expected} became {actual}"
    if isinstance(expected, dict) and isinstance(actual, dict):
        if expected.keys() != actual.keys():
            return f"{where}: {list(expected)} became {list(actual)}"
        pairs = [(expected[key], actual[key], f"{where}/{key}") for key in expected]
    elif isinstance(expected, list) and isinstance(actual, list):
        if len(expected) != len(actual):
            return f"{where}: {len(expected)} became {len(actual)}"
        pairs = [(*pair, f"{where}/{i}") for i, pair in enumerate(zip(expected, actual, strict=True))]
    else:
        return None if expected == actual else f"{where}: {expected} became {actual}"
    return next(filter(None, (first_difference(*pair) for pair in pairs)), None)


def installed_version() -> str:
    """Returns the version of the Keras that is imported here, which need not be the installed release."""
    spec = importlib.util.find_spec("keras")
    assert spec is not None
    assert spec.origin is not None
    found = re.search(
        r'__version__ = "(.+)"', Path(spec.origin).with_name("src").joinpath("version.py").read_text()
    )
    assert found is not None
    return found[1]


def fetch_tests(place: Path) -> Path:
    """Lays Keras's tests out as plain modules: those of the installed release's sources."""
    tests = place / "modules"
    if tests.exists():
        return tests
    place.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    target = ["--quiet", "--no-deps", "--target", place / "packages"]
    subprocess.run([*pip, "install", *target, *NEEDED, *BESIDES], check=True)
    release = f"keras=={importlib.metadata.version('keras')}"
    sources = ["--quiet", "--no-deps", "--no-binary", "keras", "--dest", place]
    subprocess.run([*pip, "download", *sources, release], check=True)
    with tarfile.open(*place.glob("keras-*.tar.gz")) as archive:
        archive.extractall(place / "release", filter="data")
    (unpacked,) = (place / "release").iterdir()
    laid_out = place / "laid_out"
    laid_out.mkdir(exist_ok=True)
    for path, text in tests_in(unpacked / "keras" / "src"):
        # Outside Keras's package, as a user's code is.
        (laid_out / module_name(path)).write_text(redirected(text))
    laid_out.rename(tests)
    return tests


def tests_in(sources: Path) -> Iterator[tuple[str, str]]:
    """Yields the paths and texts of Keras's tests that call `fit` or `evaluate`, or are about callbacks."""
    for file in sources.rglob("*_test.py"):
        path, text = file.relative_to(sources).as_posix(), file.read_text()
        if not path.startswith(ELSEWHERE) and (CALLS.search(text) or path.startswith("callbacks/")):
            yield path, text


def module_name(path: str) -> str:
    """Returns where a test of Keras's is laid out, for a path below `keras/src`."""
    return "suite_" + path.replace("/", "_")


def redirected(text: str) -> str:
    """Returns a test's source with what it imports of other tests imported from where they are laid out."""
    return re.sub(
        r"from keras\.src\.([\w.]+_test) import",
        lambda found: f"from suite_{found[1].replace('.', '_')} import",
        text,
    )


def families_of(tests: Path, *, everything: bool) -> dict[str, list[Path]]:
    """Returns the test modules by what they are about; each family is run in a process of its own."""
    modules = sorted(tests.glob("suite_*_test.py"))
    if not everything:
        names = ("suite_callbacks_", "suite_trainers_trainer_test")
        return {"fit_and_callbacks": [module for module in modules if module.name.startswith(names)]}
    families: dict[str, list[Path]] = {}
    for module in modules:
        family = re.match(r"suite_(layers_[a-z]+|[a-z]+)_", module.name)
        assert family is not None
        families.setdefault(family[1], []).append(module)
    return families


def outcomes_of(journal: Path) -> dict[str, dict[str, Any]]:
    """Returns what the plugin has noted of each test; the last line about one counts."""
    if not journal.exists():
        return {}
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    return {line["name"]: line for line in lines}


@dataclass(frozen=True)
class Suite:
    """Some test modules, run in processes of their own."""

    place: Path
    tests: Path
    modules: Sequence[Path]
    chosen: str
    timeout_s: float

    def choosing(self, name: str) -> Suite:
        """Returns a suite of one test, by its name in the journals."""
        module, _, test = name.partition("::")
        modules = [path for path in self.modules if path.name == module]
        function = test.rpartition("::")[2]
        return replace(self, modules=modules, chosen=function)

    def run(self, journal: Path, stock: Path | None = None, *, only_calling: bool = False) -> None:
        """Runs the tests that the journal has no outcome of, routed if there are outcomes of stock Keras.

        A test that ends the process has the outcome "crashed", and another process goes on behind it.
        """
        log = journal.with_suffix(".log")
        with log.open("a") as file:
            while True:
                try:
                    process = subprocess.run(
                        self._command(),
                        env=self._environment(journal, stock, only_calling),
                        stdout=file,
                        stderr=file,
                        timeout=self.timeout_s,
                    )
                except subprocess.TimeoutExpired:
                    print(f"{journal.stem}: cut off after {self.timeout_s:g} s")
                    break
                if process.returncode in range(6):  # pytest's own
                    break
                if not _note_crash(journal):
                    break
        print(f"{journal.stem}: {log.read_text().splitlines()[-1]} (log in {log})", flush=True)

    def _environment(self, journal: Path, stock: Path | None, only_calling: bool) -> dict[str, str]:
        return os.environ | {
            "KERAS_BACKEND": "tensorflow",
            "PYTHONPATH": os.pathsep.join(
                filter(None, [os.environ.get("PYTHONPATH"), str(HERE), str(HERE.parent)])
            ),
            "KERAS_SUITE_JOURNAL": str(journal),
            "KERAS_SUITE_PACKAGES": str(self.place / "packages"),
            "KERAS_SUITE_ROUTED": "1" if stock else "",
            "KERAS_SUITE_CALLING": str(stock) if stock and only_calling else "",
            "CUDA_VISIBLE_DEVICES": "",
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "MPLBACKEND": "Agg",
        }

    def _command(self) -> list[str]:
        command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", str(self.tests)]
        command += ["-p", "keras_suite_plugin", "-p", "no:cacheprovider", "--timeout", "300"]
        command += ["--disable-warnings", "--no-header", "--continue-on-collection-errors"]
        command += ["-k", self.chosen] if self.chosen else []
        return [*command, *map(str, self.modules)]


def _note_crash(journal: Path) -> bool:
    """Notes that the test which was running ended the process; returns whether there was one."""
    running = [name for name, line in outcomes_of(journal).items() if line["outcome"] == "running"]
    with journal.open("a") as file:
        for name in running:
            file.write(json.dumps({"name": name, "outcome": "crashed", "calls": []}) + "\n")
    return bool(running)


if __name__ == "__main__":
    sys.exit(main())
