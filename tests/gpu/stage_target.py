"""A process with stages that misbehave, for test_stages.py.

python -m tests.gpu.stage_target run DIRECTORY      goes through the stages that $STAGES names
python -m tests.gpu.stage_target body DIRECTORY NAME LIMIT
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from scripts.gpu.stages import Context, OutOfTime, Record, Stage, Unavailable, run_body
from scripts.gpu.stages import go as run_stages

CARD = "made up"


def good(context: Context) -> dict[str, Any]:
    for number in context.todo(range(3), str):
        context.record.add(str(number), {"pid": os.getpid()})
    return {"rows": 3}


def hangs(context: Context) -> dict[str, Any]:
    """Writes a row, says so through the pipe of $PIPE if there is one, and does no more."""
    context.record.add("first", {"pid": os.getpid()})
    if "PIPE" in os.environ:
        with open(os.environ["PIPE"], "w") as pipe:
            pipe.write("row\n")
            pipe.flush()
            threading.Event().wait()
    threading.Event().wait()
    return {}


def short_of_time(context: Context) -> dict[str, Any]:
    """One row for each run."""
    for number in context.todo(range(2), str):
        context.record.add(str(number), {"pid": os.getpid()})
        if number == 0:
            raise OutOfTime("out of time at 1")
    return {}


def raises(context: Context) -> dict[str, Any]:
    raise ArithmeticError("one and one is three")


def dies(context: Context) -> dict[str, Any]:
    context.record.add("first", {})
    print("the last words", flush=True)
    os._exit(7)


def lacks(context: Context) -> dict[str, Any]:
    raise Unavailable("there is no such card")


BODIES = {body.__name__: body for body in (good, hangs, short_of_time, raises, dies, lacks)}
STAGES = {name: Stage(name, body, 600) for name, body in BODIES.items()}


def record(directory: Path, name: str) -> Record:
    return Record(directory, name, fingerprint=STAGES[name].fingerprint(CARD), emulated=True)


def go(directory: Path, names: list[str], *, limit_s: float = 600, **options: Any) -> dict[str, str]:
    command = [sys.executable, "-m", "tests.gpu.stage_target", "body", str(directory)]
    stages = [Stage(name, BODIES[name], limit_s) for name in names]

    def after_each() -> None:
        with (directory / "pages").open("a") as pages:
            pages.write("written\n")

    options = {"budget_s": 600, "after_each": after_each} | options
    return run_stages(stages, command, lambda stage: record(directory, stage.name), directory, **options)


def main() -> int:
    kind, directory = sys.argv[1], Path(sys.argv[2])
    if kind == "run":
        go(directory, os.environ["STAGES"].split())
        return 0
    name, limit_s = sys.argv[3:]
    context = Context(
        record(directory, name),
        directory,
        emulate=True,
        quick=True,
        deadline_s=time.monotonic() + float(limit_s),
    )
    return run_body(STAGES[name], context)


if __name__ == "__main__":
    sys.exit(main())
