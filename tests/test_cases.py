"""The programs that once failed print what is right each of fifty times.

They lie next to the repository, in `shared/cases/sound`. `CASE_REPEATS` sets another number of runs. All but
two run in forks of a process that has imported TensorFlow.
"""

from __future__ import annotations

import importlib.util
import os
import re
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import forked

_DIRECTORY = Path(__file__).resolve().parents[2] / "shared" / "cases" / "sound"
_REPEATS = int(os.environ.get("CASE_REPEATS", "50"))
_LIMIT_S = 150

# Of each program the arguments, the exit code and what it prints; other lines may lie between.
_SAME_HISTORY = (r"Keras (?P<history>\{'loss'.*\})", r"ours (?P=history)")
_CASES: dict[str, tuple[list[str], int, tuple[str, ...]]] = {
    "dropped_arguments": ([], 1, (r"ValueError: Own\.fit trains by itself.* resume and .*functions.*",)),
    "embedding_uneven": (
        [],
        0,
        (r"Keras \{'loss': \[1\.3817\d+, 1\.3763\d+\]\}", r"ours \{'loss': \[1\.3817\d+, 1\.3763\d+\]\}"),
    ),
    "finite_generator": (
        [],
        0,
        (
            r"Keras batches an epoch (?P<batches>\[7, .*\]) iterations .*",
            r"ours batches an epoch (?P=batches) iterations .* warnings: 1 .*",
        ),
    ),
    "first_fit_atexit": (["ours"], 0, (r"OK \{.*'val_mae'.*\}",)),
    "foreign_backend": ([], 1, (r"ImportError: Keras runs on the backend 'jax', .*",)),
    "frozen_exception": (
        [],
        0,
        tuple(
            f"{place} {who} Frozen"
            for place in ("callback", "validation generator", "training generator")
            for who in ("Sequential", "Trainer")
        ),
    ),
    "lazy_layer": ([], 0, _SAME_HISTORY),
    "lazy_training_head": ([], 0, _SAME_HISTORY),
    "mirrored_test_step": (
        [],
        0,
        (
            r"Keras (?P<history>\{.*\})  (?P<evaluated>[\d.]+) ",
            r"ours (?P=history) .* (?P=evaluated) (?P=evaluated)",
        ),
    ),
    "pydataset_processes": (
        ["ours"],
        0,
        tuple(f"ours fit {number} ended; worker processes left: 0" for number in range(12)),
    ),
    "second_ctrl_c": ([], 0, (r"KeyboardInterrupt [012]\.\d s after the second",)),
    "sigterm_blocked_data": (["ours"], 0, (r"ended -15 after [012]\.\d s",)),
    "stride_hang": ([], 0, (r"ours [\d.]+ s", r"tf [\d.]+ s")),
    "validation_timeout_peek": ([], 0, (r"OK .*timeout_s=1.*",)),
}
# One is about the interpreter's end, one about a backend that the forks have not imported.
_ALONE = frozenset({"first_fit_atexit", "foreign_backend"})


def run(name: str, arguments: list[str]) -> None:
    """Run a program in this process as `python name arguments` would."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background job ignores
    sys.argv = [name, *arguments]
    runpy.run_path(name, run_name="__main__")


def _output(name: str, arguments: list[str], directory: Path) -> tuple[int | None, str]:
    """Return the exit code and the output of a program in a process of its own."""
    program = str(_DIRECTORY / f"{name}.py")
    if name in _ALONE:
        command = [sys.executable, program, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
        return done.returncode, done.stdout + done.stderr
    said = directory / "said"
    process = forked.start(run, program, arguments, said=said, limit_s=_LIMIT_S, daemon=False)
    process.join()
    return process.exitcode, said.read_text(errors="replace")


@pytest.mark.nightly
@pytest.mark.timeout(_LIMIT_S * _REPEATS)
@pytest.mark.skipif(not _DIRECTORY.is_dir(), reason="needs shared/cases/sound next to the repository")
@pytest.mark.parametrize("name", sorted(_CASES))
def test_a_program_prints_what_is_right_each_time(name, tmp_path):
    if name == "foreign_backend" and importlib.util.find_spec("jax") is None:
        pytest.skip("needs jax")
    arguments, code, lines = _CASES[name]
    pattern = re.compile("^" + "$(?:.*\n)*?^".join(lines) + "$", re.MULTILINE)
    for number in range(_REPEATS):
        exit_code, text = _output(name, arguments, tmp_path)
        assert exit_code == code, f"run {number}: exit code {exit_code}\n{text[-3000:]}"
        assert pattern.search(text), f"run {number}:\n{text[-3000:]}"
        assert "HANGS" not in text, f"run {number}:\n{text[-3000:]}"
