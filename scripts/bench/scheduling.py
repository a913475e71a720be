"""The scheduler next to what a user would do: measured on this CPU, simulated for the paper's machine.

    scripts/compare_scheduling.sh [--quick] [--parts simulated] [--output_dir results/scheduling]

Writes `scheduling.json` and prints tables. The journal has each part as soon as it has ended, and `--resume`
goes on with the next. Every row is marked *measured here*, *simulated* or *paper's hardware*.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from scripts.bench import command
from scripts.bench import scheduling_measured as measured
from scripts.bench import scheduling_simulated as simulated
from scripts.bench.publish import Cells, Finding

PARTS = ("simulated", "measured")
_WORDS = """\
Several networks at once. *Simulated* figures come from Xavier-like peaks and a duty cycle as load;
*measured* ones from this machine's CPU; those of *the paper's hardware* from paper P4, which had a Jetson
AGX Xavier. They are three different things and are not to be compared across tables."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the parts asked for; returns 0."""
    line = _command()
    options = line.parse(arguments)
    parts = options.parts.split(",")
    if unknown := set(parts) - set(PARTS):
        line.parser.error(f"unknown parts {sorted(unknown)}; the parts are {PARTS}")
    if options.quick:
        options.size, options.requests, options.repeats = 64, 4, 1
    with line.journal(options) as journal:
        report: dict[str, Any] = {}
        for part, work in _works(options).items():
            if part in parts:
                report |= journal.once(part, work)
        (Path(options.output_dir) / "scheduling.json").write_text(json.dumps(report, indent=1))
        line.show(finding(report), options, journal)
    return 0


def finding(report: dict[str, Any]) -> Finding:
    """Returns the page of the parts that ran."""
    return Finding(
        question="What do the policies of the scheduler bring, simulated and measured?",
        title="Several networks at once",
        words=_WORDS,
        tables=list(_tables(report)),
        data=report,
    )


def _works(options: argparse.Namespace) -> dict[str, Callable[[], dict[str, Any]]]:
    """Returns what finds each part."""
    return {
        "simulated": functools.partial(_simulate, quick=options.quick),
        "measured": lambda: {
            "measured": measured.measure(
                size=options.size,
                requests=options.requests,
                repeats=options.repeats,
                contenders=options.contenders.split(","),
                workload=options.workload,
                promises=options.promises,
            )
        },
    }


def _simulate(*, quick: bool) -> dict[str, Any]:
    networks, steady_s = simulated.paper_networks(), 0.0 if quick else simulated.STEADY_S
    return {
        name: simulated.compare_policies(networks, steady_s=steady_s, contention=contention)
        for name, contention in (("simulated", False), ("simulated_contention", True))
    }


def _tables(report: dict[str, Any]) -> Iterator[tuple[str, Cells]]:
    for name, where in (("simulated", ""), ("simulated_contention", ", on shared memory")):
        if name in report:
            title = f"Simulated{where}: makespan in ms, and percent less than GPU only"
            yield title, _simulated(report[name])
    if "measured" in report:
        yield "Measured on this CPU: four networks, single images", _measured(report["measured"])
        yield (
            "Measured: latency in ms under Poisson arrivals, by the share of each one's capacity",
            _latencies(report["measured"]),
        )


def _simulated(rows: Sequence[dict[str, Any]]) -> Cells:
    policies = list(rows[0]["makespan_s"])
    body = []
    for row in rows:
        less, paper = row["less_than_gpu_only_percent"], row["papers_hardware_percent"]
        cells = (f"{1e3 * row['makespan_s'][p]:.0f} ({less[p]:.0f}%)" for p in policies)
        bounds = (f"{1e3 * row[name]:.0f}" for name in ("lower_bound_s", "lower_bound_cut_s"))
        shown = "-" if paper is None else f"{paper}%"
        body.append((f"{row['scenario']}, load {row['load']}", *cells, *bounds, shown))
    return Cells(("networks", *policies, "bound", "bound, cut", "*paper's hardware*"), tuple(body))


def _measured(rows: dict[str, dict[str, Any]]) -> Cells:
    thread = rows.get("thread_each", {}).get("requests_per_s")
    body = []
    for name, row in rows.items():
        per_s = row["requests_per_s"]
        against = f"{per_s / thread:.2f}" if thread else "-"
        seconds = " ".join(f"{value:.2f}" for value in row["seconds"])
        memory = f"{row.get('memory_mib', 0):.0f}"
        body.append((f"`{name}`", f"{per_s:.1f}", against, seconds, f"{row['overhead']:.2%}", memory))
    head = ("contender", "requests/s", "÷ a thread each", "seconds of each repeat", "overhead", "MiB")
    return Cells(head, tuple(body))


def _latencies(rows: dict[str, dict[str, Any]]) -> Cells:
    loads = list(next(iter(rows.values())).get("latencies", {}))
    body = []
    for name, row in rows.items():
        cells = (
            " ".join(f"{1e3 * row['latencies'][load][f'p{share}_s']:.0f}" for share in (50, 95, 99))
            for load in loads
        )
        found = row.get("deadlines")
        shown = "{met} met, {missed} missed, {refused} refused".format(**found) if found else "-"
        body.append((f"`{name}`", *cells, shown))
    head = (
        "contender",
        *(f"p50, p95, p99 at {load}" for load in loads),
        "deadlines of 4 times the cost at 70%",
    )
    return Cells(head, tuple(body))


def _command() -> command.Command:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--parts", default=",".join(PARTS), help="comma-separated: " + ", ".join(PARTS))
    add("--size", type=int, default=128, help="height and width of the measured images")
    add("--requests", type=int, default=16, help="for each network and repeat")
    add("--repeats", type=int, default=5)
    add("--contenders", default=",".join(measured.CONTENDERS))
    add("--workload", default="", help="a file in Band's format to replay: networks, periods, objectives")
    add("--promises", type=int, default=0, help="requests with deadlines; by default those of a repeat")
    add("--quick", action="store_true", help="small sizes: a check that it runs, no figures")
    return command.Command(
        parser,
        script="scripts/compare_scheduling.sh",
        series="scheduling",
        output_dir="results/scheduling",
    )


if __name__ == "__main__":
    sys.exit(command.run(main))
