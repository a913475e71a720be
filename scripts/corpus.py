"""Runs `overlap-train verify` over the programs of a folder, several at once, and prints a table.

    scripts/corpus.sh FOLDER [--jobs N] [--epochs N] [--batches N] [--timeout S]

Programs are its `*.py` and its notebooks, of which the cells of code are run. Nothing is fetched. The status
is 1 if one of them differs or cannot be told, such as one that fails by Keras too or takes too long, and 2 if
none could be compared. Those that do not train or do what Keras cannot do are listed, and count for nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tokenize
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
EQUAL, UNEQUAL, UNTOLD, NOTHING = "equal", "different", "cannot be told", "-"
SAYS_NOTHING = ("has not called fit or evaluate", "cannot be run by Keras")  # of `overlap-train verify`

# Of notebooks.
RUNS_PYTHON = re.compile(r"%%?(?:time|timeit|prun|memit)\b(?:[ \t]+--?[A-Za-z][\w-]*(?:[ \t]+\d+)?)*[ \t]*")
WITHOUT_SIGN = re.compile(r"(?:cd|conda|ls|mkdir|pip|rm)[ \t]+(?:-\w|/\w|[\w.~])")  # a command, too
HAS_FIT = re.compile(r"\.(?:fit|evaluate)\(|%run\b")
HEAD = "display = print\nget_ipython = lambda: None\n"  # names that Jupyter gives


@dataclass(frozen=True)
class Result:
    """What came of a program: EQUAL, UNEQUAL, UNTOLD or NOTHING, in words, and the seconds in its fits."""

    program: str
    kind: str
    text: str
    gain: str = ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Verify the programs and print the table; return the exit status."""
    parser = argparse.ArgumentParser(prog="scripts/corpus.sh", description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", type=int, default=2, help="programs at once")
    parser.add_argument("--epochs", type=int, default=0, help="at most so many epochs a fit")
    parser.add_argument("--batches", type=int, default=0, help="at most so many batches an epoch")
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds for one program")
    options = parser.parse_args(arguments)
    programs = sorted(
        path
        for path in (*options.folder.glob("*.py"), *options.folder.glob("*.ipynb"))
        if not path.name.startswith("_")
    )
    if not programs:
        parser.error(f"there are no programs in {options.folder}")
    print("| program | results | in fit, s |\n| --- | --- | --- |")
    results, stop = [], threading.Event()
    with ThreadPoolExecutor(max(1, options.jobs)) as pool:
        try:
            for result in pool.map(lambda path: verify(path, options, stop), programs):
                results.append(result)
                cells = (result.program, result.text, result.gain)
                print(
                    "|",
                    " | ".join(" ".join(cell.replace("|", "/").split()) for cell in cells),
                    "|",
                    flush=True,
                )
        finally:
            stop.set()  # after Ctrl-C, which the programs do not get
    kinds = [result.kind for result in results]
    print(
        f"\n{kinds.count(EQUAL)} equal, {kinds.count(UNEQUAL)} different, {kinds.count(UNTOLD)} that "
        f"cannot be told, {kinds.count(NOTHING)} that say nothing"
    )
    return 1 if {UNEQUAL, UNTOLD}.intersection(kinds) else 0 if EQUAL in kinds else 2


def verify(program: Path, options: argparse.Namespace, stop: threading.Event) -> Result:
    """Verify one program in the folder in which it lies; until `stop` is set."""
    # It may be killed: its own files for a time are in this directory as well.
    with tempfile.TemporaryDirectory(prefix="overlap-train-", ignore_cleanup_errors=True) as directory:
        script = program.resolve()
        if program.suffix == ".ipynb":
            script = Path(directory, f"{program.name}.py")  # which hides no module, as `keras.py` would
            try:
                script.write_text(code_of(program), encoding="utf-8")
            except Exception as error:  # whatever is wrong with a file, the others are verified
                reason = f"{type(error).__name__}: {error}"
                return Result(program.name, UNTOLD, f"{UNTOLD}: no notebook that can be run: {reason}"[:200])
        command = [sys.executable, "-m", "overlap_train.cli", "verify", "--json"]
        command += [f"--epochs={options.epochs}", f"--batches={options.batches}", str(script)]
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        outputs = Path(directory, "output"), Path(directory, "errors")
        with outputs[0].open("wb") as output, outputs[1].open("wb") as errors:
            process = subprocess.Popen(
                command,
                cwd=program.parent,
                env=os.environ | {"PYTHONPATH": path, "TMPDIR": directory},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )
        until_s = time.monotonic() + options.timeout
        try:
            while process.poll() is None and time.monotonic() < until_s and not stop.wait(0.05):
                pass
        finally:
            end_session(process)
        if process.returncode == -signal.SIGKILL and time.monotonic() >= until_s:
            return Result(program.name, UNTOLD, f"{UNTOLD}: took longer than {options.timeout:g} s")
        printed, said = (path.read_text(encoding="utf-8", errors="replace") for path in outputs)
    try:
        report = json.loads(printed)
    except ValueError:
        lines = said.strip().splitlines() or [f"ended with {process.returncode}"]
        named = next((line for line in lines if line.startswith("overlap-train verify: ")), lines[-1])
        said = named.removeprefix("overlap-train verify: ").removeprefix(f"{script} ")
        if said.startswith(SAYS_NOTHING):
            return Result(program.name, NOTHING, f"- {said}"[:200])
        return Result(program.name, UNTOLD, f"{UNTOLD}: {said}"[:200])
    result = {finding["name"]: finding for finding in report["sections"]["result"]}
    kind = EQUAL if report["ok"] else UNTOLD if result["verdict"]["value"] == "unclear" else UNEQUAL
    return Result(program.name, kind, result["verdict"]["text"], result["time"]["text"])


def end_session(leader: subprocess.Popen[bytes]) -> None:
    """Kill a process, those that it has started, and those of its session that have lost their parent."""
    ending = []
    with contextlib.suppress(psutil.NoSuchProcess):
        if leader.returncode is None:
            ending = [psutil.Process(leader.pid), *psutil.Process(leader.pid).children(recursive=True)]
    for pid in psutil.pids():
        with contextlib.suppress(psutil.NoSuchProcess, OSError):
            ending += [psutil.Process(pid)] if os.getsid(pid) == leader.pid else []
    for process in ending:
        with contextlib.suppress(psutil.Error):
            process.kill()
    leader.wait()  # before psutil does, which would take its status
    psutil.wait_procs(ending, timeout=5)


def code_of(notebook: Path) -> str:
    """Return the Python of a notebook; what is for the shell or for Jupyter does nothing."""
    content = json.loads(notebook.read_text(encoding="utf-8-sig"))
    if not isinstance(content, dict) or "cells" not in content:
        raise ValueError("it has no cells, or is of an older version than 4")
    cells = ["".join(cell["source"]) for cell in content["cells"] if cell["cell_type"] == "code"]
    text = "".join(f"{python_of(cell)}\n\n" for cell in cells)
    future = re.compile(r"^from __future__ import .*\n", re.M)  # which has to be at the beginning
    return "".join(future.findall(text)) + HEAD + future.sub("", text)


def python_of(cell: str) -> str:
    """Return a cell's Python, with `pass` in the places of commands.

    The statement of `%time` stays, and so does the cell of `%%time` or `%%capture`.
    """
    cell = re.sub(r"\A(?:[ \t]*\n)+", "", cell)
    indent = cell[: -len(cell.lstrip(" \t")) or None]  # of its first line, which Jupyter takes from all
    cell = re.sub(f"^{indent}", "", cell, flags=re.M)
    if magic := re.match(r"%%(\S*)[ \t]*(.*)\n?", cell):
        body = cell[magic.end() :]
        if RUNS_PYTHON.match(magic[0]):
            return python_of(f"{RUNS_PYTHON.sub('', magic[0], count=1)}\n{body}")
        if magic[1] == "capture":
            return python_of(body)
        if magic[1] in ("writefile", "file"):
            mode = "a" if magic[2].startswith("-a ") else "w"
            return f"open({magic[2].removeprefix('-a ').strip()!r}, {mode!r}).write({body!r})"
        return _dropped(cell)
    while (found := _command(cell)) is not None:
        start, replacement = found
        command = re.findall(r"(?:.*\\\n)*.*", cell[start:])[0]
        python = RUNS_PYTHON.sub("", command, count=1) if RUNS_PYTHON.match(command) else ""
        cell = cell[:start] + (python or _dropped(command, replacement)) + cell[start + len(command) :]
    return cell


def _dropped(command: str, replacement: str = "pass") -> str:
    """Return what stands in the place of a command; raise ValueError if a fit would be lost."""
    if HAS_FIT.search(command):
        raise ValueError(f"what `{command.strip().splitlines()[0]}` runs is not run here")
    return replacement


def _command(text: str) -> tuple[int, str] | None:
    """Return where the first command begins, and what can stand in its place; None if there is none.

    Commands are `%x`, `!x`, `?x` and `pip x` where a statement begins, `y = %x`, `y = !x` and `x?`.
    """
    starts = [0, *(match.end() for match in re.finditer("\n", text))]
    statement: list[tokenize.TokenInfo] = []
    depth = 0  # of brackets
    # The tokens behind a command, which are none of Python's, may be an error.
    with contextlib.suppress(tokenize.TokenError, SyntaxError):
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            sign = token.string if token.type in (tokenize.OP, tokenize.ERRORTOKEN) else ""
            if token.type == tokenize.NEWLINE:
                statement = []
            elif token.string.strip() and token.type != tokenize.COMMENT:
                statement.append(token)
                depth += (sign in ("(", "[", "{")) - (sign in (")", "]", "}"))
                row, column = statement[0 if sign == "?" else -1].start
                start = starts[row - 1] + column
                begins = len(statement) == 1 and (sign in ("%", "!") or WITHOUT_SIGN.match(text, start))
                if sign == "?" or begins:
                    return start, "pass"
                if sign in ("%", "!") and depth == 0 and statement[-2].string == "=":
                    return start, "[]"
    return None


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # as Ctrl-C does
    sys.exit(main())
