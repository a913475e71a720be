"""Runs `overlap-train verify` over the programs of a folder, several at once, and prints a table.

    scripts/corpus.sh FOLDER [--jobs N] [--epochs N] [--batches N] [--timeout S]

Programs are its `*.py` and its notebooks, of which the cells of code are run. Nothing is fetched. The status
is 1 if one of them differs, cannot be told or takes too long, and 2 if none could be compared. Those that do
not train, that fail by Keras too, or that do what Keras cannot do are listed, and count for nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EQUAL, UNEQUAL, NOTHING = "equal", "differs", "-"


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
            script = Path(directory, f"{program.stem}.py")
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
    """Return the code of a notebook without its commands for the shell and for Jupyter."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    lines = [line for cell in cells if cell["cell_type"] == "code" for line in [*cell["source"], "\n"]]
    text = "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)
    return "".join(
        line for line in text.splitlines(keepends=True) if not line.lstrip().startswith(("%", "!"))
    )


if __name__ == "__main__":
    sys.exit(main())
