"""The tests on a GPU: those that need one, and those that compare with Keras."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from pathlib import Path
from typing import Any

from scripts.gpu.stages import ROOT, Context, Unavailable, output_of
from scripts.gpu.training_stages import training_device

__all__ = ["suite", "tests"]

_NO_TESTS = 5  # pytest's status
# Only the plugins that our tests use: others, which the machine has, warn, and warnings are errors.
_NO_OTHER_PLUGINS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "-p pytest_timeout"}
_PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
_MOST_PROCESSES = 14
# What compiles C++, needs the repository's history or measures a CPU has no place here.
_LEFT_OUT = ("bench", "cli", "conv", "docs", "examples", "gpu", "rooms", "support")
_FILES = (
    *("test_bad_input", "test_differential", "test_no_leak", "test_parity"),
    *("test_real_code", "test_routing", "test_snapshot", "test_trainer"),
)


def tests(context: Context) -> dict[str, Any]:
    """Run the tests that are marked `gpu`; emulated, they are only collected."""
    training_device(context)
    _needs("pytest", "pytest_timeout")
    os.environ |= _NO_OTHER_PLUGINS
    command = [*_PYTEST, "-v", "-m", "gpu", "-rf", "tests"]  # names what a crash ends
    if context.emulate:
        command = [*command[:-1], "--collect-only", "tests/test_gpu.py"]
    status, lines = output_of(command, context)
    _keep(lines, context, "tests.txt")
    words = lines[-12:]
    failed = [line for line in words if re.match(r"FAILED|ERROR", line)]
    wrong = failed or ([f"status {status}"] if status not in (0, _NO_TESTS) else [])
    context.record.add("gpu tests", {"last_words": words, "wrong": wrong})
    return {"status": status}


def suite(context: Context) -> dict[str, Any]:
    """Run the default tests of the trainer on the card, with operations that repeat: a row for each failure.

    What holds on a CPU alone is marked `cpu_only`, and the marks have not been tried on a card: a failure is
    something to read, and not yet wrong. All that pytest prints stays in `suite.txt`. Emulated, a room and a
    file run, and the package believes that there is a GPU.
    """
    training_device(context)
    _needs("pytest", "pytest_timeout", "xdist")
    os.environ |= _NO_OTHER_PLUGINS
    os.environ["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"  # for many processes on one card
    processes = max(1, min((os.cpu_count() or 1) - 2, _MOST_PROCESSES))
    begin = [*_PYTEST, "-p", "tests.deterministic", "-m", "not nightly and not kill and not gpu", "-rfE"]
    spread = ["-p", "xdist.plugin", f"--numprocesses={processes}", "--dist=worksteal"]
    command = [*begin, "--tb=short", *spread, *_tests_of_the_trainer()]
    if context.emulate:
        command = [*begin, "-p", "tests.pretended_gpu", "tests/test_snapshot.py", "tests/validation"]
    status, lines = output_of(command, context)
    _keep(lines, context, "suite.txt")
    failed = [line.split(" ", 1)[1] for line in lines if re.match(r"(FAILED|ERROR) ", line)]
    for name in failed:
        context.record.add(name.split(" - ")[0], {"failure": name})
    counts = [line for line in lines if re.search(r"\d+ (passed|failed|errors?)\b.* in ", line)][-1:]
    wrong = [] if counts else [f"status {status}"]  # it ended before it could count
    context.record.add("all", {"last_words": counts, "wrong": wrong})
    return {"status": status, "failed": len(failed)}


def _keep(lines: list[str], context: Context, name: str) -> None:
    (context.directory / name).write_text("\n".join(lines) + "\n", encoding="utf-8")


def _tests_of_the_trainer() -> list[str]:
    tests = ROOT / "tests"
    rooms = [path for path in sorted(tests.iterdir()) if (path / "__init__.py").exists()]
    paths: list[Path] = [path for path in rooms if path.name not in _LEFT_OUT]
    return [str(path.relative_to(ROOT)) for path in (*paths, *(tests / f"{name}.py" for name in _FILES))]


def _needs(*packages: str) -> None:
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise Unavailable(f"{package} is not installed here")
