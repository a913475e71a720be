"""The page that the stages' records make, and its parts.

Made from whatever is there, so that it can be written after every stage, and after a run that was cut off. A
page of emulated stages says so in its title, in every heading and under every table.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.gpu.stages import ROOT, Context, Record, Stage, go, run_body, verdict, write_atomically

Row = dict[str, Any]
EMULATED = "Emulated: a CPU stood in for the GPU, and NumPy for its libraries. This says nothing about a GPU."


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a Markdown table; floats are shown with three digits."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(_cell(value) for value in row) + " |" for row in rows]
    return "\n".join(lines)


def wrong_rows(rows: list[Row]) -> str:
    """Return what is to be added where a row is wrong."""
    found = [f"- {row['key']}: {'; '.join(row['wrong'])}" for row in rows if row.get("wrong")]
    return "\n\n**Wrong:**\n\n" + "\n".join(found) if found else ""


def page(
    path: Path,
    title: str,
    command: str,
    *,
    emulated: bool,
    stages: Sequence[Stage],
    record: Callable[[Stage], Record],
    facts: Mapping[str, str],
) -> None:
    """Write what is known now."""
    parts = [f"# {'Emulated: ' if emulated else ''}{title}", f"Made by `{command}`."]
    if emulated:
        parts.append(f"**{EMULATED}**")
    parts.append(table(("machine", ""), list(facts.items())))
    sections: list[list[Stage]] = []
    for stage in stages:
        if stage.title:
            sections.append([])
        sections[-1].append(stage)
    for section in sections:
        found = list(map(record, section))
        states = dict.fromkeys(map(_state, found))  # without those that say the same
        parts += [f"## {section[0].title}{' (emulated)' if emulated else ''}", *states]
        rows = [row for each in found for row in each.rows]
        if rows:
            parts += [section[0].text(rows), f"*{EMULATED}*" if emulated else ""]
    write_atomically(path, ("\n\n".join(filter(None, parts)) + "\n").encode())


def _cell(value: object) -> str:
    text = f"{value:.3g}" if isinstance(value, float) else str(value)
    return text.replace("|", "/").replace("\n", " ")


def _state(record: Record) -> str:
    found = f"{len(record.rows)} rows"
    if record.status is None:
        return f"Cut off after {found}; run the command again." if record.rows else "Not run yet."
    if record.status == "done":
        return ""
    words = {
        "partial": f"Out of time after {found}; run the command again",
        "unavailable": "Not possible here",
    }
    return f"{words.get(record.status, 'Failed')}: {record.reason}".rstrip(": ") + "."


_BUDGET_S = 540.0
_CALLS, _PLANNED_S = 6, 510.0  # of a call: it waits for its last stage to end, and starts no fit at its end
_LEAST_PLANNED_S = 30.0


@dataclass(frozen=True)
class Evidence:
    """The stages of one command, and how its page shows them."""

    module: str
    script: str
    title: str
    series: str  # what the name of the folder ends with, behind the card's
    stages: Sequence[Stage]  # the most important first
    before: tuple[Evidence, ...] = ()  # commands that are called earlier, in calls of their own

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options of a run."""
        add = parser.add_argument
        add("--emulate", action="store_true", help="rehearse on a CPU; every table says so")
        add("--again", action="store_true", help="repeat what is done, too")
        add("--quick", action="store_true", help="the least that shows that everything runs")
        add("--output", type=Path, help="folder of the page (docs/results; emulated: runs/emulated)")
        add("--budget-s", type=float, default=_BUDGET_S, help="seconds for all stages (%(default)s)")
        add(
            "--plan",
            action="store_true",
            help="print which call does what, and run nothing",
        )
        add("--only", nargs="+", choices=[s.name for s in self.stages], help="these stages alone")
        add("--body", nargs=4, help=argparse.SUPPRESS)  # a stage's process: folder, card, name, limit

    def main(self, description: str | None) -> int:
        """Run the command line; return what `run` does."""
        parser = argparse.ArgumentParser(prog=self.script, description=description)
        self.add_arguments(parser)
        try:
            return self.run(parser.parse_args())
        except RuntimeError as error:
            print(error, file=sys.stderr)
            return 1

    def run(self, options: argparse.Namespace) -> int:
        """Do what is left to do; return 0 if it is done and right, 1 if not, 3 if some is left."""
        if options.plan:
            print(self.plan())
            return 0
        if options.body:
            return self._body(options)
        card = _card_name(emulate=options.emulate)
        output = options.output or ROOT / ("runs/emulated" if options.emulate else "docs/results")
        directory = results_directory(output, f"{card} {self.series}".strip(), again=options.again)
        stages = [stage for stage in self.stages if not options.only or stage.name in options.only]
        flags = [flag for flag in ("--emulate", "--quick") if getattr(options, flag[2:])]

        def record(stage: Stage) -> Record:
            return stage.record(directory, card, emulate=options.emulate)

        def write() -> None:
            page(
                directory.with_name(f"{directory.name}.md"),
                f"{self.title} on {'no GPU' if options.emulate else card}, {directory.name[:10]}",
                f"{self.script}{' --emulate' if options.emulate else ''}",
                emulated=options.emulate,
                stages=self.stages,
                record=record,
                facts=facts(card, emulate=options.emulate),
            )

        states = go(
            stages,
            [sys.executable, "-m", *self.module.split(), *flags, "--body", str(directory), card],
            record,
            directory,
            budget_s=options.budget_s,
            after_each=write,
            again=options.again,
        )
        write()
        print(f"page: {directory}.md")
        return verdict(states, [record(stage) for stage in stages])

    def calls(self) -> list[dict[str, float]]:
        """Return the calls that it takes, each with the seconds that are expected of its stages."""
        found: list[dict[str, float]] = [{}]
        for stage in self.stages:
            rest_s = stage.expected_s
            while rest_s > 0:
                left_s = _PLANNED_S - sum(found[-1].values())
                part_s = min(rest_s, left_s) if stage.by_rows else rest_s
                if found[-1] and (part_s > left_s or left_s < _LEAST_PLANNED_S):
                    found.append({})
                    continue
                found[-1][stage.name] = part_s
                rest_s -= part_s
        return found

    def plan(self) -> str:
        """Return a line for each call, those of the commands before it too."""
        lines: list[str] = []
        for evidence in (*self.before, self):
            for call in evidence.calls():
                parts = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in call.items())
                lines.append(f"{len(lines) + 1}  {sum(call.values()):4.0f} s  {evidence.script}: {parts}")
        end = f"Up to here: {min(len(lines), _CALLS)} calls of ten minutes, by times of an H100."
        return "\n".join([*lines[:_CALLS], end, *lines[_CALLS:]])

    def _body(self, options: argparse.Namespace) -> int:
        directory, card, name, limit_s = options.body
        stage = next(stage for stage in self.stages if stage.name == name)
        context = Context(
            stage.record(Path(directory), card, emulate=options.emulate),
            Path(directory),
            emulate=options.emulate,
            quick=options.quick,
            deadline_s=time.monotonic() + float(limit_s),
        )
        return run_body(stage, context)


def results_directory(output: Path, name: str, *, again: bool) -> Path:
    """Return the folder of a card's results, with its page next to it: the newest, or a new one of today."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    earlier = sorted({path.parent for path in output.glob(f"????-??-??-{slug}/*.jsonl")})
    if earlier and not again:
        return earlier[-1]
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    directory = output / f"{today}-{slug}"
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def facts(card: str, *, emulate: bool) -> dict[str, str]:
    """Return what figures depend on: the card, its driver, compilers, packages of this process."""
    known = {"GPU": "none: emulated on a CPU" if emulate else card}
    if not emulate:
        query = "driver_version,memory.total,clocks.max.sm,power.limit"
        known["driver, memory, clock, power limit"] = _output(
            "nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"
        ).strip()
    release = re.search(r"release ([\d.]+)", _output("nvcc", "--version"))
    known["nvcc"] = release[1] if release else "none"
    for package in ("torch", "tensorflow", "keras", "numpy"):
        try:
            known[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return known | {"Python": platform.python_version(), "cores": str(os.cpu_count())}


def _card_name(*, emulate: bool) -> str:
    """Return what the driver calls the first GPU."""
    if emulate:
        return "emulated"
    if shutil.which("nvidia-smi") is None:
        raise RuntimeError("nvidia-smi is not on the path, so there is no GPU here; rehearse with --emulate")
    name = _output("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").splitlines()
    if not name:
        raise RuntimeError("nvidia-smi shows no GPU; rehearse with --emulate")
    return name[0].strip()


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
