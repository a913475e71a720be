"""The comparison of systems from the command line; scripts/compare.sh calls it.

Every system trains every workload in processes of their own, taking turns. Ends in tables, and in
`results.json` with every run. The journal has each run as soon as it has ended; `--resume` goes on.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.bench import children, command
from scripts.bench.children import ChildFailedError
from scripts.bench.figures import Run, group_runs, tables, verdict
from scripts.bench.journal import Journal
from scripts.bench.publish import Finding
from scripts.bench.systems import DEFAULT_SYSTEMS, SYSTEMS
from scripts.bench.workloads import WORKLOADS

_QUICK_BUDGET_S = 165.0
_DEFAULTS: dict[str, Any] = {"threads": (1, 6), "epochs": 10, "repeats": 3, "timeout_s": 7200}
_QUICK: dict[str, Any] = {"threads": (6,), "epochs": 2, "repeats": 5, "timeout_s": 120}
_SETTINGS = ("workloads", "systems", "threads", "epochs", "repeats", "quick", "timeout_s", "whole")
_WORDS = """\
Whole epochs with their validation, {timed}. Each run is a process of its own.
All systems take turns, and another one begins in each repeat. Seconds are for one epoch: the
median, then the fastest and the slowest run. *Floor* is the CPU seconds spread evenly over all cores,
*hidden* the validation that ran during training. Ratios are medians of paired runs; below 1 is faster.
In brackets: our median ÷ the baseline's fastest run."""


@dataclass(frozen=True)
class Results:
    """What a comparison came to: its runs, which data each workload was, and what was left out and why."""

    runs: tuple[Run, ...]
    sources: dict[str, str]
    notes: tuple[str, ...]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the comparison; returns the exit status."""
    line = _command()
    options = line.parse(argv)
    budget_s = _QUICK_BUDGET_S if options.quick and options.repeats is None else None
    for name, default in (_QUICK if options.quick else _DEFAULTS).items():
        setattr(options, name, getattr(options, name) or default)
    settings = {name: getattr(options, name) for name in _SETTINGS}
    with (
        tempfile.TemporaryDirectory(prefix="overlap_train-compare-") as cache_dir,
        line.journal(options, settings) as journal,
    ):
        try:
            found = compare(options, journal, cache_dir=cache_dir, budget_s=budget_s)
        except ChildFailedError as error:
            print(f"compare: the data could not be prepared: {error}", file=sys.stderr)
            return 1
        page = finding(found, settings, cores=journal.machine["cores"])
        results = {"machine": journal.machine, **page.data}
        (Path(options.output_dir) / "results.json").write_text(json.dumps(results, indent=1))
        failed = [f"{run.workload}, {run.system}: {run.error}" for run in found.runs if run.error]
        if failed and options.publish:
            print(f"compare: {len(failed)} runs failed and nothing is published; the first: {failed[0]}")
            options.publish = None
        line.show(page, options, journal)
        where = {"cores": journal.machine["cores"], "others": journal.other_cores}
        verdicts = [verdict(group, **where) for group in group_runs(found.runs)]
        print(*(f"Verdict: {text}." for text in verdicts if text), sep="\n")
    return bool(failed)


def compare(
    settings: argparse.Namespace, journal: Journal, *, cache_dir: str, budget_s: float | None
) -> Results:
    """Runs everything that is asked for, but for what the journal holds."""
    start_s, log = time.monotonic(), Path(settings.output_dir) / "child.log"

    def job(**values: Any) -> Any:
        return children.run_module(
            "scripts.bench.compare_child", json.dumps(values), log=log, timeout_s=settings.timeout_s
        )

    lacking = [name for name in settings.systems if SYSTEMS[name].missing]
    notes = [f"{name} left out: {SYSTEMS[name].needs} not installed" for name in lacking]
    sources = {}
    for workload in settings.workloads:
        sources[workload] = job(job="prepare", workload=workload, cache_dir=cache_dir, quick=settings.quick)
        print(f"{workload}: {sources[workload]}", flush=True)
    print(*(f"note: {note}" for note in notes), sep="\n", flush=True)
    runs: list[Run] = []
    longest_s = 0.0
    for repeat in range(settings.repeats):
        left_s = float("inf") if budget_s is None else budget_s + start_s - time.monotonic()
        if repeat > 0 and left_s < longest_s:
            notes.append(f"{repeat} of {settings.repeats} repeats: another would not fit into the time")
            print(f"note: {notes[-1]}", flush=True)
            break
        began_s, specs = time.monotonic(), plan_round(settings, repeat, cache_dir)
        for index, spec in enumerate(specs):
            key = "run/{workload}/{system}/{threads}/{repeat}".format(**spec)
            work = functools.partial(_run, spec, settings.timeout_s, log)
            runs.append(Run.from_json(journal.once(key, work, keep=_succeeded)))
            print(_line(runs[-1], f"{repeat + 1}/{settings.repeats}, {index + 1}/{len(specs)}"), flush=True)
        longest_s = max(longest_s, time.monotonic() - began_s)
    return Results(tuple(runs), sources, tuple(notes))


def plan_round(settings: argparse.Namespace, repeat: int, cache_dir: str) -> list[dict[str, Any]]:
    """Returns the runs of one repeat, workload by workload, beginning with another system each time."""
    same: dict[str, Any] = {"repeat": repeat, "epochs": settings.epochs, "quick": settings.quick}
    same |= {"cache_dir": cache_dir, "whole": settings.whole}
    specs = []
    for workload in settings.workloads:
        chosen = [
            {"workload": workload, "system": name, "threads": threads, **same}
            for name in settings.systems
            if not SYSTEMS[name].missing
            for threads in (settings.threads if SYSTEMS[name].uses_threads else (None,))
        ]
        # Neighbours in a round are neighbours in time, and so make the fairest pairs.
        first = repeat * (1 + len(chosen) // settings.repeats) % max(1, len(chosen))
        specs += [*chosen[first:], *chosen[:first]]
    return specs


def finding(found: Results, settings: dict[str, Any], *, cores: int) -> Finding:
    """Returns the page of a comparison."""
    timed = (
        "the first one too, and all before it but the imports"
        if settings["whole"]
        else "after one that is not timed"
    )
    workloads = ", ".join(settings["workloads"])
    ran = [name for name in SYSTEMS if any(run.system == name for run in found.runs)]
    titles = "\n".join(f"| `{name}` | {SYSTEMS[name].title} |" for name in ran)
    words = [_WORDS.format(timed=timed), f"| system | what it is |\n|---|---|\n{titles}"]
    words.append("\n".join(f"- `{workload}`: {source}" for workload, source in found.sources.items()))
    if found.notes:
        words.append("\n".join(f"- {note}" for note in found.notes))
    return Finding(
        question=f"How long does an epoch take with its validation: {workloads}?",
        title=f"An epoch with its validation: {workloads}",
        words="\n\n".join(words),
        tables=list(tables(group_runs(found.runs), cores=cores)),
        data={
            "settings": settings,
            "sources": found.sources,
            "notes": list(found.notes),
            "runs": [run.to_json() for run in found.runs],
        },
    )


def _run(spec: dict[str, Any], timeout_s: float, log: Path) -> dict[str, Any]:
    """Returns the run as JSON values; one that failed or took longer than `timeout_s` says so in `error`."""
    job = json.dumps({"job": "train", **spec})
    needs = SYSTEMS[spec["system"]].needs
    environment = {"KERAS_BACKEND": needs} if needs else {}
    figures: dict[str, Any]
    try:
        figures = children.run_module(
            "scripts.bench.compare_child", job, log=log, timeout_s=timeout_s, environment=environment
        )
    except ChildFailedError as error:
        figures = {"error": str(error)}
    names = ("workload", "system", "threads", "repeat", "epochs")
    return Run(**{name: spec[name] for name in names}, **figures).to_json()


def _succeeded(run: Any) -> bool:
    """A run that failed, for want of memory or of time, is tried again by --resume."""
    return run["error"] is None


def _command() -> command.Command:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--workloads", type=_names_of(WORKLOADS), default="mnist", help=f"of {', '.join(WORKLOADS)}; or all")
    systems, usual = ", ".join(SYSTEMS), ",".join(DEFAULT_SYSTEMS)
    add("--systems", type=_names_of(SYSTEMS), default=usual, help=f"of {systems} (default: {usual})")
    add("--threads", type=_counts, help="validation workers and num_parallel_calls (default: 1,6; quick: 6)")
    add("--epochs", type=_count, help="timed epochs of a run (default: 10; quick: 2)")
    add("--repeats", type=_count, help="runs of each system (default: 3; quick: as many as fit)")
    add("--whole", action="store_true", help="the first epoch counts, and all before it but the imports")
    add("--quick", action="store_true", help="shrunk data, three minutes in all on two cores")
    add("--timeout_s", type=_count, help="a run that takes longer is ended (default: 7200; quick: 120)")
    return command.Command(parser, script="scripts/compare.sh", series="epochs", output_dir="results/compare")


def _names_of(known: Iterable[str]) -> Callable[[str], tuple[str, ...]]:
    def names(text: str) -> tuple[str, ...]:
        chosen = tuple(known) if text == "all" else tuple(dict.fromkeys(text.split(",")))
        for name in chosen:
            if name not in known:
                raise argparse.ArgumentTypeError(
                    f"unknown name {name!r}; expected some of {', '.join(known)}"
                )
        return chosen

    return names


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number of 1 or more, got {text!r}")
    return int(text)


def _counts(text: str) -> tuple[int, ...]:
    return tuple(map(_count, text.split(",")))


def _line(run: Run, place: str) -> str:
    threads = "" if run.threads is None else f" x{run.threads}"
    what = f"[{place}] {run.workload:<12} {run.system + threads:<22}"
    if run.error is not None:
        return f"{what} failed: {run.error}"
    accuracy = "" if run.val_accuracy is None else f", val_acc {run.val_accuracy:.2%}"
    return f"{what} {run.epoch_s:7.2f} s/epoch, {run.cpu_s / run.wall_s:.2f} cores busy{accuracy}"


if __name__ == "__main__":
    sys.exit(command.run(main))
