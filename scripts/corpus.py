"""Runs `overlap-train verify` over the programs of a folder, several at once, and prints a table.

    scripts/corpus.sh FOLDER [--jobs N] [--epochs N] [--batches N] [--timeout S]

Programs are its `*.py` and its notebooks, of which the cells of code are run. Nothing is fetched. The status
is 1 if one of them differs, cannot be told or takes too long, and 2 if none could be compared. Those that do
not train, that fail by Keras too, or that do what Keras cannot do are listed, and count for nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import tokenize
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EQUAL, UNEQUAL, NOTHING = "equal", "differs", "-"

# Of a notebook: what runs the Python behind it, with options; what loses a fit if it is dropped; its head,
# with the names that Jupyter gives.
RUNS_PYTHON = re.compile(r"%%?(?:time|timeit|prun|memit)\b(?:[ \t]+--?[A-Za-z][\w-]*(?:[ \t]+\d+)?)*[ \t]*")
HAS_FIT = re.compile(r"\.(?:fit|evaluate)\(|%run\b")
HEAD = "display = print\nget_ipython = lambda: None\n"


@dataclass(frozen=True)
class Result:
    """What came of a program: one of EQUAL, UNEQUAL and NOTHING, in words, and the seconds in its fits."""

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
    results = []
    with ThreadPoolExecutor(max(1, options.jobs)) as pool:
        for result in pool.map(lambda path: verify(path, options), programs):
            results.append(result)
            print(f"| {result.program} | {result.text} | {result.gain} |", flush=True)
    counts = {kind: sum(r.kind == kind for r in results) for kind in (EQUAL, UNEQUAL, NOTHING)}
    print(f"\n{counts[EQUAL]} equal, {counts[UNEQUAL]} not, {counts[NOTHING]} that say nothing")
    return 1 if counts[UNEQUAL] else 0 if counts[EQUAL] else 2


def verify(program: Path, options: argparse.Namespace) -> Result:
    """Verify one program in the folder in which it lies."""
    with tempfile.TemporaryDirectory(prefix="overlap-train-") as directory:
        script = program.resolve()
        if program.suffix == ".ipynb":
            script = Path(directory, f"{program.name}.py")  # which hides no module, as `keras.py` would
            script.write_text(code_of(program), encoding="utf-8")
        command = [sys.executable, "-m", "overlap_train.cli", "verify", "--json"]
        command += [f"--epochs={options.epochs}", f"--batches={options.batches}", str(script)]
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        try:
            done = subprocess.run(
                command,
                cwd=program.parent,
                env=os.environ | {"PYTHONPATH": path},
                capture_output=True,
                text=True,
                timeout=options.timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Result(program.name, UNEQUAL, f"took longer than {options.timeout:g} s")
    try:
        report = json.loads(done.stdout)
    except ValueError:
        said = done.stderr.strip().splitlines() or ["nothing was said"]
        kind = NOTHING if done.returncode == 2 else UNEQUAL
        return Result(program.name, kind, f"- {said[-1].removeprefix('overlap-train verify: ')}"[:200])
    result = {finding["name"]: finding for finding in report["sections"]["result"]}
    kind = EQUAL if report["ok"] else UNEQUAL
    return Result(program.name, kind, result["verdict"]["text"].replace("|", "/"), result["time"]["text"])


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
    if magic := re.match(r"\s*%%(\S*)[ \t]*(.*)\n?", cell):
        body = cell[magic.end() :]
        if RUNS_PYTHON.match(magic[0].lstrip()):
            return python_of(f"{RUNS_PYTHON.sub('', magic[0].lstrip(), count=1)}\n{body}")
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

    Commands are `%x`, `!x` and `?x` where a statement begins, `y = %x` and `y = !x`, and `x?`.
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
                if sign == "?" or (sign in ("%", "!") and len(statement) == 1):
                    return start, "pass"
                if sign in ("%", "!") and depth == 0 and statement[-2].string == "=":
                    return start, "[]"
    return None


if __name__ == "__main__":
    sys.exit(main())
