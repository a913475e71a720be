"""The scheduler beside what a user would do: measured on this CPU, simulated for the paper's machine.

    scripts/compare_scheduling.sh [--quick] [--parts simulated,costs] [--output_dir results/scheduling]

Writes `scheduling.json`, plots and timelines, and prints a table. The journal has each part as soon as it has
ended, and `--resume` goes on with the next. Every row is marked *measured here*,
*simulated* or *paper's hardware*.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from overlap_train.monitoring import save_chrome_trace
from scripts.bench import command, scheduling_agreement
from scripts.bench import scheduling_measured as measured
from scripts.bench import scheduling_simulated as simulated
from scripts.bench.publish import publish
from scripts.bench.scheduling_page import finding, show
from scripts.bench.scheduling_report import plot_growth, plot_policies

__all__ = ["main"]

_Work = Callable[[], dict[str, Any]]
PARTS = ("simulated", "agreement", "costs", "measured", "gpu")


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Runs the parts asked for; returns what was written as JSON."""
    line = _command()
    options = line.parse(arguments)
    parts = options.parts.split(",")
    if unknown := set(parts) - set(PARTS):
        line.parser.error(f"unknown parts {sorted(unknown)}; the parts are {PARTS}")
    if options.publish and options.quick:
        line.parser.error("--quick shows that all works; its figures are not published")
    if options.quick:
        options.size, options.requests, options.repeats = 64, 4, 1
    output_dir = Path(options.output_dir)
    with line.journal(options) as journal:
        report: dict[str, Any] = {"machine": {"processor": _processor(), "cores": os.cpu_count()}}
        if "costs" in parts:
            import tensorflow as tf

            # Before anything starts TensorFlow: layers are profiled as the scheduler runs them.
            tf.config.threading.set_intra_op_parallelism_threads(1)
        for part, (names, work) in _works(options, output_dir).items():
            if part in parts:
                found = journal.once(part, work)
                report |= {name: found[name] for name in names}
                show(part, found)
        (output_dir / "scheduling.json").write_text(json.dumps(report, indent=1))
        if options.publish:
            page = finding(report, series=options.publish, command=line.as_typed, folder=output_dir)
            print(f"Published: {publish(page, journal.machine, journal.others_line)}")
    return report


def _works(options: argparse.Namespace, output_dir: Path) -> dict[str, tuple[tuple[str, ...], _Work]]:
    """Returns for each part the names of what it finds, and what finds it."""
    return {
        "simulated": (("simulated", "oracle"), lambda: _simulate(options, output_dir)),
        "costs": (("costs_simulated", "costs_measured"), lambda: _costs(64 if options.quick else 96)),
        "agreement": (
            ("agreement",),
            lambda: {"agreement": scheduling_agreement.compare(1 if options.quick else 3)},
        ),
        "measured": (("measured",), lambda: {"measured": _measure(options)}),
        "gpu": (("gpu",), lambda: {"gpu": _gpu()}),
    }


def _simulate(options: argparse.Namespace, output_dir: Path) -> dict[str, Any]:
    graphs = simulated.paper_graphs()
    pieces = {count for _, count in simulated.COLUMNS.values()} - {1}
    cut = {count: simulated.paper_graphs(count) for count in pieces}
    rows = simulated.compare_policies(
        {1: graphs} | cut, steady_s=0.0 if options.quick else simulated.STEADY_S
    )
    plot_policies(rows, output_dir / "policies.png")
    plot_growth(rows, output_dir / "growth.png")
    scenario = simulated.SCENARIOS[0]
    costs = simulated.profiled([graphs[name] for name in set(scenario.networks)])
    rounds = simulated.run(graphs, scenario.networks, "earliest_finish", scenario.loads["60%"], costs)
    save_chrome_trace(output_dir / "timeline_simulated.json", simulated.spans(rounds[-1]))
    return {"simulated": rows, "oracle": simulated.oracle_ratio(50 if options.quick else 1000)}


def _costs(size: int) -> dict[str, Any]:
    graphs = simulated.paper_graphs()
    return {"costs_simulated": simulated.compare_costs(graphs), "costs_measured": _held_out(size)}


def _measure(options: argparse.Namespace) -> dict[str, Any]:
    return measured.measure(
        size=options.size,
        requests=options.requests,
        repeats=options.repeats,
        contenders=options.contenders.split(","),
        cpu_load=options.cpu_load,
        beside=options.beside,
    )


def _held_out(size: int) -> dict[str, Any]:
    """Profiles every layer of the four networks here, and predicts those of one shape in four.

    The least of 18 times, in nine rounds over all networks: the machine's speed changes within minutes.
    """
    import numpy as np

    from overlap_train.scheduling import CostModel, Device, Platform
    from overlap_train.scheduling.graph.model_splitting import split_model
    from overlap_train.scheduling.runtime.segments import merge_layers
    from overlap_train.scheduling.runtime.tensorflow_backend import compile_segments, profile_layers

    one, graphs = Platform((Device("CPU:0"),)), []
    for name, model in measured.networks(size).items():
        split = split_model(model, name=name)
        every = [range(index, index + 1) for index in range(len(split.graph))]
        graphs.append(compile_segments(split, merge_layers(split.graph, every), one))
    rounds = [[row for graph in graphs for row in profile_layers(graph, one, repeats=2)] for _ in range(9)]
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


def _gpu() -> dict[str, Any]:
    import tensorflow as tf

    if not tf.config.list_physical_devices("GPU"):
        return {"skipped": "TensorFlow sees no GPU here; nothing was run on one"}
    from scripts.bench.scheduling_gpu import measure_gpu

    measured_gpu: dict[str, Any] = measure_gpu()
    return measured_gpu


def _command() -> command.Command:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--parts", default=",".join(PARTS), help="comma-separated: " + ", ".join(PARTS))
    add("--size", type=int, default=128, help="height and width of the measured images")
    add("--requests", type=int, default=16, help="for each network and repeat")
    add("--repeats", type=int, default=5)
    add("--contenders", default=",".join(measured.DEFAULT))
    add("--cpu-load", type=float, default=0.0, help="share of every core taken meanwhile")
    add("--beside", default="", help="a program to run again and again meanwhile")
    add("--quick", action="store_true", help="small sizes: a check that it runs, no figures")
    return command.Command(
        parser,
        script="scripts/compare_scheduling.sh",
        series="scheduling",
        output_dir="results/scheduling",
        also=("--out",),
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


if __name__ == "__main__":
    sys.exit(command.run(lambda: 0 if main() else 1))
