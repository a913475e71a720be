"""scripts/gpu_evidence.sh and scripts/gpu_tensorflow.sh, rehearsed on the CPU from end to end."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.gpu.driver import EMULATED, results_directory
from scripts.gpu.evidence import EVIDENCE
from scripts.gpu.tensorflow_runs import EVIDENCE as TENSORFLOW

ROOT = Path(__file__).parents[2]
_MORE_TO_DO = 3
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


def run(script: str, *arguments: str, status: int = 0, most_calls: int = 1, **environment: str) -> str:
    """Returns what a script has printed; one that has more to do is called `most_calls` times at most."""
    done = subprocess.run(
        [ROOT / "scripts" / script, *arguments],
        env=os.environ | {"PYTHON": sys.executable} | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    if done.returncode == _MORE_TO_DO and most_calls > 1:
        return done.stdout + run(script, *arguments, status=status, most_calls=most_calls - 1, **environment)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


def check_emulated_page(output: Path, headings: int) -> None:
    (page,) = output.glob("*.md")
    text = page.read_text()
    assert text.startswith("# Emulated: ")
    found = [line for line in text.splitlines() if line.startswith("## ")]
    assert len(found) == headings
    assert all(line.endswith("(emulated)") for line in found)
    shown = [part for part in text.split("\n## ")[1:] if "Not possible here" not in part]
    assert all(f"*{EMULATED}*" in part for part in shown)
    assert text.count(f"*{EMULATED}*") == len(shown) + 1, "under each section with rows, and on top"
    assert not re.search(r"\| (met|missed) \|", text), "an emulated run meets no bar"
    assert not re.search(r"[^\w.]/(tmp|home|work|root)/", text), "a path of this machine"


@needs_compiler
@pytest.mark.timeout(600)
@pytest.mark.nightly
def test_evidence_is_rehearsed_without_tensorflow_and_not_repeated(tmp_path) -> None:
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    for name in ("tensorflow", "keras"):
        (blocked / f"{name}.py").write_text("raise ImportError('there is no TensorFlow on that machine')\n")
    output = tmp_path / "results"
    arguments = ("--emulate", "--quick", "--output", str(output))
    first = run("gpu_evidence.sh", *arguments, PYTHONPATH=str(blocked))
    assert len(re.findall(r": done after", first)) == len(EVIDENCE.stages)
    check_emulated_page(output, sum(bool(stage.title) for stage in EVIDENCE.stages))
    (directory,) = (path for path in output.iterdir() if path.is_dir())
    (directory / "timing.jsonl").unlink()
    again = run("gpu_evidence.sh", *arguments, PYTHONPATH=str(blocked))
    assert len(re.findall(r": done before, skipped", again)) == len(EVIDENCE.stages) - 1
    assert len(re.findall(r": done after", again)) == 1


@needs_compiler
@pytest.mark.timeout(2400)  # up to four calls of nine minutes, on a busy machine
@pytest.mark.nightly
def test_tensorflow_runs_are_rehearsed_and_not_repeated(tmp_path) -> None:
    arguments = ("run", "--emulate", "--quick", "--output", str(tmp_path))
    first = run("gpu_tensorflow.sh", *arguments, most_calls=4)
    assert len(re.findall(r": (done|unavailable) after", first)) == len(TENSORFLOW.stages)
    check_emulated_page(tmp_path, len(TENSORFLOW.stages))
    again = run("gpu_tensorflow.sh", *arguments)
    assert len(re.findall(r"before, skipped", again)) == len(TENSORFLOW.stages)


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="there is a GPU")
@pytest.mark.parametrize("arguments", [("gpu_evidence.sh",), ("gpu_tensorflow.sh", "run")])
def test_machine_without_a_gpu_is_told_and_nothing_is_written(tmp_path, arguments) -> None:
    script, *rest = arguments
    run(script, *rest, "--output", str(tmp_path / "results"), status=1, OVERLAP_TRAIN_STORE=str(tmp_path))
    assert not (tmp_path / "results").exists()


def test_results_of_yesterday_are_gone_on_with(tmp_path) -> None:
    earlier = tmp_path / "2020-01-02-made-up-1"
    earlier.mkdir()
    (earlier / "check.jsonl").touch()
    assert results_directory(tmp_path, "Made up, 1", again=False) == earlier
    assert results_directory(tmp_path, "Made up, 1", again=True) != earlier
    assert results_directory(tmp_path, "Made up, 2", again=False).name.endswith("made-up-2")
