"""The scheduler next to what a user would do: measured on this CPU, simulated for the paper's machine.

    scripts/compare_scheduling.sh [--quick] [--parts simulated,costs] [--output_dir results/scheduling]

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

__all__ = ["PARTS", "finding", "main"]

PARTS = ("simulated", "costs", "measured")
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
        if "costs" in parts:
            import tensorflow as tf

            # Before anything starts TensorFlow: layers are profiled as the scheduler runs them.
            tf.config.threading.set_intra_op_parallelism_threads(1)
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
        "costs": lambda: {"costs_measured": _held_out(64 if options.quick else 96)},
        "measured": lambda: {
            "measured": measured.measure(
                size=options.size,
                requests=options.requests,
                repeats=options.repeats,
                contenders=options.contenders.split(","),
                workload=options.workload,
            )
        },
    }


def _simulate(*, quick: bool) -> dict[str, Any]:
    networks, steady_s = simulated.paper_networks(), 0.0 if quick else simulated.STEADY_S
    return {
        name: simulated.compare_policies(networks, steady_s=steady_s, contention=contention)
        for name, contention in (("simulated", False), ("simulated_contention", True))
    }


def _held_out(size: int) -> dict[str, Any]:
    """Profiles every layer of the four networks here, and predicts those of one shape in four.

    The least of 18 times, in nine rounds over all networks: the machine's speed changes within minutes.
    """
    import numpy as np

    from overlap_train.scheduling import CostModel, Device, Platform
    from overlap_train.scheduling.models import split_model
    from overlap_train.scheduling.preparing import compile_segments, profile_layers
    from overlap_train.scheduling.segments import merge_layers

    one, graphs = Platform((Device("CPU:0"),)), []
    for name, model in measured.networks(size).items():
        split = split_model(model, name=name)
        every = [range(index, index + 1) for index in range(len(split.graph))]
        graphs.append(compile_segments(split, merge_layers(split.graph, every), one))
    (device,) = one.devices
    profiles = [[profile_layers(graph, device, repeats=2) for graph in graphs] for _ in range(9)]
    rounds = [
        [row for profile in found if profile is not None for row in profile.samples] for found in profiles
    ]
    samples = [min(same, key=lambda sample: sample[2]) for same in zip(*rounds, strict=True)]
    shapes = list(dict.fromkeys(layer.work for layer, _, _ in samples))
    held = set(np.random.default_rng(0).permutation(len(shapes))[: len(shapes) // 4].tolist())
    unseen = {shapes[index] for index in held}
    costs = CostModel()
    costs.add_profile(sample for sample in samples if sample[0].work not in unseen)
    tests = [sample for sample in samples if sample[0].work in unseen]
    errors = [abs(costs.predict_unseen(layer.work, device) / seconds - 1) for layer, device, seconds in tests]
    return {
        "marked": "measured here",
        "size": size,
        "layers": len(samples),
        "held_out": len(tests),
        "mean_absolute_error": float(np.mean(errors)),
        "median_absolute_error": float(np.median(errors)),
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
    figures = [
        (key.replace("_", " "), f"{value:.4g}" if isinstance(value, float) else str(value))
        for key, value in report.get("costs_measured", {}).items()
    ]
    if figures:
        yield "Other figures", Cells(("what", "figure"), tuple(figures))


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
    add("--quick", action="store_true", help="small sizes: a check that it runs, no figures")
    return command.Command(
        parser,
        script="scripts/compare_scheduling.sh",
        series="scheduling",
        output_dir="results/scheduling",
    )


if __name__ == "__main__":
    sys.exit(command.run(main))
