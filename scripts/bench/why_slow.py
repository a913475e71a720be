"""Small measured examples of what makes `keras.Model.fit` slow; see docs/start/keras_is_slow.md.

    python -m scripts.bench.why_slow                     all cases, three minutes
    python -m scripts.bench.why_slow --cases=predict     one of them

Each case is a process of its own (`why_slow_cases`), with random data: only time and memory are of interest.
"""

from __future__ import annotations

import argparse
import functools
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scripts.bench import command
from scripts.bench.orphans import ENDS_WITH_PARENT
from scripts.bench.publish import Finding, publish
from scripts.bench.table import Cells, layout

__all__ = ["TITLES", "main"]

TITLES = {
    "validation": "A small network, an epoch of 8 steps",
    "retracing": "Five fits of one epoch",
    "autotune": "Taking down the iterator of a pipeline at an epoch's end",
    "steps": "A small network, 400 steps an epoch",
    "first": "A convolutional network, fits of one epoch",
    "predict": "Predictions of single rows",
}
_WORDS = """\
Small examples of what makes `keras.Model.fit` slow, and of what helps. Random data; each example is a
process of its own. What each means is said in [Keras is slow because](../start/keras_is_slow.md)."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the cases that the journal does not hold, and prints their tables; returns 0."""
    line = _command()
    options = line.parse(argv)
    cases = options.cases.split(",")
    if unknown := [case for case in cases if case not in TITLES]:
        line.parser.error(f"unknown cases {unknown}; the cases are {', '.join(TITLES)}")
    with line.journal(options) as journal:
        found = {case: journal.once(case, functools.partial(_run, case)) for case in cases}
        tables = [(TITLES[case], _cells(rows)) for case, rows in found.items()]
        for title, cells in tables:
            print(f"\n{title}\n{layout(cells)}")
        print(f"\n{journal.others_line}")
        (Path(options.output_dir) / "why_slow.json").write_text(json.dumps(found, indent=1))
        if options.publish:
            page = Finding(
                series=options.publish,
                question="What makes `keras.Model.fit` slow, and what helps?",
                title="Keras is slow because",
                words=_WORDS,
                command=line.as_typed,
                tables=tables,
                data=found,
            )
            print(f"Published: {publish(page, journal.machine, journal.others_line)}")
    return 0


def _run(case: str) -> list[dict[str, Any]]:
    """Returns the rows of a case, measured in a process of its own."""
    arguments = [sys.executable, "-m", "scripts.bench.why_slow_cases", case]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, preexec_fn=ENDS_WITH_PARENT)
    if done.returncode:
        raise RuntimeError(f"{case} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    rows: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return rows


def _cells(rows: Sequence[dict[str, Any]]) -> Cells:
    names = list(rows[0])
    return Cells(tuple(names), tuple(tuple(_shown(row[name]) for name in names) for row in rows))


def _shown(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.2f}" if abs(value) < 10 else f"{value:,.0f}"


def _command() -> command.Command:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", default=",".join(TITLES), help=f"some of {', '.join(TITLES)}")
    return command.Command(
        parser, script="python -m scripts.bench.why_slow", series="why-slow", output_dir="results/why_slow"
    )


if __name__ == "__main__":
    sys.exit(command.run(main))
