"""`overlap-train verify train.py`: whether a script has the results of Keras when its `fit` is overlapped.

The script runs twice in fresh processes with the same seeds, by Keras and overlapped, each in a copy of the
working directory. Where the two differ, each may run again: what differs between two runs of Keras, such as
a measured time, says nothing. If that leaves nothing to tell, both run with TensorFlow's operations made to
repeat.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from overlap_train.cli.report import Finding, Report, State, UsageError, one_line
from overlap_train.cli.script import add_script, require_script

if TYPE_CHECKING:  # which imports NumPy
    from overlap_train.cli.comparing import Run

PREFIX = "overlap-train-"  # of the directory for the copies
_SHOWN = 5  # differences
_LARGEST_GIB = 4
_LEFT_OUT = {".git", "__pycache__", ".venv", "venv"}
# As `python script` does, with the script's folder on the path and not the working directory.
_PROCESS = (
    "import sys; sys.path[:] = filter(None, sys.path); "
    "from overlap_train.cli.recording import main; main(sys.argv[1:])"
)


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
    parser.add_argument(
        "--deterministic", action="store_true", help="have TensorFlow's operations repeat, for both"
    )
    example = "overlap-train verify --epochs 2 train.py."
    add_script(parser, "a Python script that trains a Keras model", example)


def run(options: argparse.Namespace) -> Report:
    """Run the script both ways and compare all that came of it."""
    with tempfile.TemporaryDirectory(prefix=PREFIX) as directory:
        keras, ours, findings = _compared(directory, options)
        if findings[0].remedy is not None and keras.error is None and not options.deterministic:
            with contextlib.suppress(UsageError):  # some operations of TensorFlow cannot repeat
                options.deterministic = True
                repeating, _, repeated = _compared(directory, options)
                if repeating.error is None and repeated[0].value != "unclear":
                    text = "two runs of Keras differ unless TensorFlow's operations repeat, as in these"
                    otherwise = dataclasses.replace(findings[0], name="otherwise", state="note", remedy=None)
                    findings = [*repeated, Finding("deterministic", True, text, "note"), otherwise]
    by_keras_s, ours_s = keras.in_fits("seconds"), ours.in_fits("seconds")
    saved_s, gain = by_keras_s - ours_s, f"{ours_s:.2f} s in fit, by Keras {by_keras_s:.2f} s"
    findings.append(Finding("time", saved_s, gain, "ok" if saved_s > 0 else "note"))
    return Report("verify", {"result": findings})


def _compared(directory: str, options: argparse.Namespace) -> tuple[Run, Run, list[Finding]]:
    """Run the script both ways; return the runs and what `judge` says of them."""
    keras, ours = (record(directory, by, options) for by in ("keras", "overlap"))
    if os.isatty(0) and "EOFError" in str(keras.error):
        raise UsageError(f"{options.script} asks for input; pipe it in, and each run gets the same")
    require_comparable(options.script, keras, ours)
    return keras, ours, judge(options.tolerance, keras, ours, lambda by: record(directory, by, options))


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
    from overlap_train.cli.comparing import differences, fail_alike

    judgement = judging.judge(
        list(differences(keras, ours)),
        lambda by: differences(ours if by == "overlap" else keras, again(by)),
        tolerance=tolerance,
    )
    races = any(difference.decides for difference in judgement.varying)  # two runs of Keras
    remedy = "seed what the script draws from" if races else None
    if judgement.value in ("equal", "rounding") and fail_alike(keras, ours):
        text = (
            "cannot be told: both fail alike before an epoch has ended, and nothing could be compared: "
            + one_line(keras.calls[0].raised)
        )
        judgement = dataclasses.replace(judgement, value="unclear", text=text)
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
    if judging.raised_alike(keras.error, ours.error):
        findings.append(Finding("end", keras.error, f"both runs: {one_line(keras.error)}", "note"))
    counts = ", ".join(f"{count} {name}" for name, count in keras.counts.items())
    findings.append(Finding("compared", keras.counts, counts))
    findings += [Finding("said", text, text, "note") for text in ours.reasons]
    return findings


def record(directory: str, by: str, options: argparse.Namespace) -> Run:
    """Run the script by "keras" or "overlap", or overlapped with Keras's own "operations".

    Each run has a process and a working directory of its own. All in a directory have the same paths, which a
    script may print or write down.
    """
    require_script(options.script)
    from overlap_train.cli.comparing import Run

    runs, here = Path(directory).resolve(), Path.cwd().resolve()
    place = runs / "run"
    work, temporary = place / "work", place / "tmp"
    _require_room(here)
    _copy(here, work)
    before = _files(work)
    script = options.script.resolve()
    arguments = [by, int(options.deterministic), options.seed, options.epochs, options.batches]
    arguments += [script.relative_to(here) if script.is_relative_to(here) else script]
    arguments += options.rest
    temporary.mkdir()
    with (place / "output").open("w") as output, (place / "errors").open("w") as errors:
        _run(
            [sys.executable, "-c", _PROCESS, place, *map(str, arguments)],
            runs / "input",
            cwd=work,
            stdout=output,
            stderr=errors,
            env={
                **os.environ,
                "PWD": str(work),
                "PYTHONHASHSEED": "0",
                "PYTHONPATH": os.pathsep.join(_import_path(here, work)),
                "TMPDIR": str(temporary),
            },
        )
    sys.stderr.write((place / "errors").read_bytes().decode(errors="replace"))
    after = _files(work)
    written = sorted((path for path in after if before.get(path) != after[path]), key=after.__getitem__)
    run = Run.read(place, [*written, *sorted(before.keys() - after.keys())])
    left = place.rename(runs / f"run {len(os.listdir(runs))}")  # which the script's processes may still hold
    shutil.rmtree(left, ignore_errors=True)  # all is in memory, and up to ten copies may fill the disk
    return run


def _run(command: list[Any], kept: Path, **options: Any) -> None:
    """Run a process on standard input, of which all processes get what the first has got, kept in a file."""
    if os.isatty(0) or kept.exists():
        with open(kept if kept.exists() else os.devnull, "rb") as given:
            subprocess.run(command, stdin=given, check=False, **options)
        return
    with subprocess.Popen(["tee", kept], stdout=subprocess.PIPE) as tee:
        try:
            subprocess.run(command, stdin=tee.stdout, check=False, **options)
        finally:
            tee.kill()  # it waits for more, which may never come


def _import_path(here: Path, work: Path) -> Iterator[str]:
    """Yield where this package is found, and what a process in the copy imports instead of the original."""
    yield str(Path(__file__).resolve().parents[2])
    for entry in filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        path = Path(entry).resolve()
        copy = work / path.relative_to(here) if path.is_relative_to(here) else path
        yield str(copy if copy.exists() else path)


def _require_room(directory: Path) -> None:
    """Raise UsageError for a working directory that is too large to be copied."""
    total = 0
    for source, _, link in _entries(directory):
        total += source.stat().st_size if link is None and source.is_file() else 0
        if total > _LARGEST_GIB << 30:
            raise UsageError(
                f"{directory} holds more than {_LARGEST_GIB} GiB, and each run gets a copy: put the data "
                "outside, and name it by an absolute path"
            )


def _copy(here: Path, work: Path) -> None:
    """Copy a directory, with as much of its repository as tells which commit it is."""
    work.mkdir(parents=True)
    for source, place, link in _entries(here):
        if link is not None:
            (work / place).symlink_to(link)
        elif source.is_dir():
            (work / place).mkdir()
        elif os.access(source, os.R_OK):
            shutil.copy2(source, work / place)
    git = next((path / ".git" for path in (here, *here.parents) if (path / ".git").exists()), None)
    if git is not None and git.is_dir() and os.access(git, os.R_OK):
        large = shutil.ignore_patterns("objects", "lfs", "annex", "modules", "*.ipc")
        shutil.copytree(git, work / ".git", ignore=large, symlinks=True)
        (work / ".git/objects/info").mkdir(parents=True)  # new objects are written to the copy
        (work / ".git/objects/info/alternates").write_text(f"{git / 'objects'}\n")


def _entries(here: Path) -> Iterator[tuple[Path, Path, str | None]]:
    """Yield what a copy of a directory holds: its source, its place, and where it leads if it stays a link.

    Links that lead outside are followed, for a run could write there, but each folder once.
    """
    places, folders = {here: Path()}, [(here, Path())]
    while folders:
        folder, at = folders.pop()
        for path in sorted(folder.iterdir()) if os.access(folder, os.R_OK | os.X_OK) else ():
            if path.name in _LEFT_OUT or path.name.startswith(PREFIX):
                continue
            place, goal = at / path.name, Path(os.path.realpath(path))
            known = next((each for each in (goal, *goal.parents) if each in places), None)
            if path.is_symlink() and known and not _LEFT_OUT.intersection(goal.relative_to(known).parts):
                raw = os.readlink(path)
                stays = folder.is_relative_to(here) and not os.path.normpath(at / raw).startswith(("/", ".."))
                yield (
                    path,
                    place,
                    raw if stays else os.path.relpath(places[known] / goal.relative_to(known), at),
                )
            elif path.is_symlink() and here.is_relative_to(goal):
                yield path, place, str(goal)
            elif goal.is_dir():
                places.setdefault(goal, place)
                folders.append((goal, place))
                yield goal, place, None
            elif goal.is_file():
                yield goal, place, None


def _files(directory: Path) -> dict[Path, tuple[int, int]]:
    """Return a directory's files and links, with what changes when one is written."""
    found = {}
    for path in sorted(directory.rglob("*")):
        left_out = {"__pycache__", ".git"}.intersection(path.relative_to(directory).parts)
        if (path.is_symlink() or path.is_file()) and not left_out:
            found[path] = (path.lstat().st_ctime_ns, path.lstat().st_size)
    return found


def _count(text: str) -> int:
    if not re.fullmatch(r"\d+", text):
        raise argparse.ArgumentTypeError(f"{text} is no whole number from 0 on")
    return int(text)
