"""`overlap-train verify train.py`: whether a script has the results of Keras when its `fit` is overlapped.

The script runs twice in fresh processes with the same seeds, by Keras and overlapped, each in a copy of the
working directory. Where the two differ, Keras runs once more: what differs between two runs of Keras, such as
a measured time, says nothing.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from overlap_train.cli.report import Finding, Report, State, UsageError, one_line
from overlap_train.cli.script import add_script, require_script

if TYPE_CHECKING:  # which imports NumPy
    from overlap_train.cli.comparing import Run

__all__ = ["PREFIX", "add_arguments", "judge", "record", "require_comparable", "run"]

PREFIX = "overlap-train-"  # of the directory for the copies
_SHOWN = 5  # differences
_LARGEST_GIB = 4
_LEFT_OUT = shutil.ignore_patterns(".git", "__pycache__", ".venv", "venv")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments: how much to run, a script, and what follows is the script's."""
    parser.add_argument("--epochs", type=_count, default=0, metavar="N", help="train at most N epochs a fit")
    parser.add_argument("--batches", type=_count, default=0, metavar="N", help="at most N batches an epoch")
    parser.add_argument("--seed", type=_count, default=1, metavar="N", help="where the script sets none")
    parser.add_argument(
        "--tolerance",
        type=float,
        default=1e-4,
        metavar="R",
        help="largest relative difference that is rounding (default: 1e-4)",
    )
    add_script(parser, "a Python script that trains a Keras model")
    parser.epilog = (
        "example: overlap-train verify --epochs 2 train.py. Arguments behind the script are the script's."
    )


def run(options: argparse.Namespace) -> Report:
    """Run the script both ways and compare all that came of it."""
    with tempfile.TemporaryDirectory(prefix=PREFIX) as directory:
        keras, ours = (record(Path(directory, by), by, options) for by in ("keras", "overlap"))
        require_comparable(options.script, keras, ours)
        findings = judge(
            options.tolerance, keras, ours, lambda by: record(Path(directory, f"{by} again"), by, options)
        )
    saved_s = keras.fit_seconds - ours.fit_seconds
    gain = f"{ours.fit_seconds:.2f} s in fit, by Keras {keras.fit_seconds:.2f} s"
    return Report(
        "verify", {"result": [*findings, Finding("time", saved_s, gain, "ok" if saved_s > 0 else "note")]}
    )


def require_comparable(script: Path, keras: Run, ours: Run) -> None:
    """Raise UsageError if two runs of a script say nothing about overlapping."""
    if keras.refused is not None:
        raise UsageError(f"{script} cannot be run by Keras: {keras.refused}")
    if ours.refused is not None:
        raise UsageError(f"{script} cannot be compared: {ours.refused}")
    if keras.error is not None and not keras.calls:
        raise UsageError(f"{script} fails by Keras too: {one_line(keras.error)}")
    if not keras.calls:
        raise UsageError(f"{script} has not called fit or evaluate")


def judge(tolerance: float, keras: Run, ours: Run, again: Callable[[str], Run]) -> list[Finding]:
    """Return the verdict on two runs and what it rests on; if they differ, `again` gives others."""
    from overlap_train._support import differences as judging
    from overlap_train.cli.comparing import differences

    runs = {"keras": keras, "overlap": ours}
    judgement = judging.judge(
        list(differences(keras, ours)), lambda by: differences(runs[by], again(by)), tolerance=tolerance
    )
    remedy = "seed what the script draws from" if judgement.value == "unclear" else None
    state: State = "ok" if judgement.value in ("equal", "rounding") else "mend"
    findings = [Finding("verdict", judgement.value, judgement.text, state, remedy)]
    others = judgement.wrong[1:]
    findings += [Finding("also", str(d), str(d), "note") for d in others[: _SHOWN - 1]]
    if len(others) >= _SHOWN:
        more = len(others) - _SHOWN + 1
        findings.append(Finding("more", more, f"{more} more", "note"))
    if count := len(judgement.varying):
        text = (
            f"{count} values differ between two runs of Keras as well, such as {judgement.varying[0].place}"
        )
        findings.append(Finding("left out", count, text, "note"))
    if keras.error is not None and keras.error == ours.error:
        findings.append(Finding("end", keras.error, f"both runs: {one_line(keras.error)}", "note"))
    findings.append(Finding("compared", keras.counts, keras.summary))
    findings += [Finding("said", text, text, "note") for text in ours.reasons]
    return findings


def record(directory: Path, by: str, options: argparse.Namespace) -> Run:
    """Run the script by "keras" or by "overlap", in a process and a working directory of its own."""
    require_script(options.script)
    from overlap_train.cli.comparing import Run

    work, here = directory / "work", Path.cwd()
    _require_room(here)
    shutil.copytree(here, work, ignore=_ignored, copy_function=_copied, symlinks=False)
    before = _files(work)
    script = options.script.resolve()
    arguments = [by, options.seed, options.epochs, options.batches]
    arguments += [script.relative_to(here.resolve()) if script.is_relative_to(here.resolve()) else script]
    arguments += options.rest
    temporary = directory / "tmp"
    temporary.mkdir()
    with (directory / "output").open("w") as output:
        subprocess.run(
            [sys.executable, "-m", "overlap_train.cli.recording", directory, *map(str, arguments)],
            cwd=work,
            stdout=output,
            env={
                **os.environ,
                "PYTHONHASHSEED": "0",
                "PYTHONPATH": os.pathsep.join(_import_path()),
                "TMPDIR": str(temporary),
            },
            check=False,
        )
    written = [path for path, stamp in _files(work).items() if before.get(path) != stamp]
    return Run.read(directory, written)


def _import_path() -> list[str]:
    """Return where this package is found, for a process in another directory."""
    return [str(Path(__file__).resolve().parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]


def _require_room(directory: Path) -> None:
    """Raise UsageError for a working directory that is too large to be copied."""
    total = 0
    for folder, folders, names in os.walk(directory):
        folders[:] = sorted(set(folders) - _ignored(folder, folders))
        for name in names:
            path = Path(folder, name)
            total += path.stat().st_size if path.is_file() else 0
        if total > _LARGEST_GIB << 30:
            raise UsageError(
                f"{directory} holds more than {_LARGEST_GIB} GiB, and each run gets a copy: put the data "
                "outside, and name it by an absolute path"
            )


def _ignored(directory: str, names: Sequence[str]) -> set[str]:
    """Return what a copy leaves out: what is no part of a run, no file, or the copies themselves."""
    left_out = set(_LEFT_OUT(directory, list(names)))
    for name in names:
        path = Path(directory, name)
        if name.startswith(PREFIX) or not (path.is_file() or path.is_dir()):
            left_out.add(name)
    return left_out


def _copied(source: str, target: str) -> None:
    if os.access(source, os.R_OK):
        shutil.copy2(source, target)


def _files(directory: Path) -> dict[Path, tuple[int, int]]:
    """Return a directory's files, with what changes when one is written."""
    return {
        path: (path.stat().st_mtime_ns, path.stat().st_size)
        for path in sorted(directory.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


def _count(text: str) -> int:
    if not re.fullmatch(r"\d+", text):
        raise argparse.ArgumentTypeError(f"{text} is no whole number from 0 on")
    return int(text)
