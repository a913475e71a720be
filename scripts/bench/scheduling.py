"""The scheduler beside what a user would do: measured on this CPU, simulated for the paper's machine.

    scripts/compare_scheduling.sh [--quick] [--parts simulated,costs] [--out results/scheduling]

Writes `scheduling.json`, plots and timelines, and prints a table. Every row is marked *measured here*,
*simulated* or *paper's hardware*.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from overlap_train.monitoring import save_chrome_trace
from scripts.bench import scheduling_agreement
from scripts.bench import scheduling_measured as measured
from scripts.bench import scheduling_simulated as simulated
from scripts.bench.scheduling_report import plot_growth, plot_policies

__all__ = ["main"]

PARTS = ("simulated", "agreement", "costs", "measured", "gpu")


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Runs the parts asked for; returns what was written as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--parts", default=",".join(PARTS), help="comma-separated: " + ", ".join(PARTS))
    parser.add_argument("--out", type=Path, default=Path("results/scheduling"))
    parser.add_argument("--size", type=int, default=128, help="height and width of the measured images")
    parser.add_argument("--requests", type=int, default=16, help="for each network and repeat")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--contenders", default=",".join(measured.DEFAULT))
    parser.add_argument("--cpu-load", type=float, default=0.0, help="share of every core taken meanwhile")
    parser.add_argument("--beside", default="", help="a program to run again and again meanwhile")
    parser.add_argument("--quick", action="store_true", help="small sizes: a check that it runs, no figures")
    options = parser.parse_args(arguments)
    parts = options.parts.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"unknown parts {sorted(unknown)}; the parts are {PARTS}")
    if options.quick:
        options.size, options.requests, options.repeats = 64, 4, 1
    options.out.mkdir(parents=True, exist_ok=True)
    report: dict[str, Any] = {"machine": {"processor": _processor(), "cores": os.cpu_count()}}
    if "costs" in parts:
        import tensorflow as tf

        # Before anything starts TensorFlow: layers are profiled as the scheduler runs them.
        tf.config.threading.set_intra_op_parallelism_threads(1)
    if {"simulated", "costs"} & set(parts):
        _simulate(report, parts, options)
    if "costs" in parts:
        report["costs_measured"] = _held_out(64 if options.quick else 96)
        print(f"cost model, layers held out, measured here: {report['costs_measured']}")
    if "agreement" in parts:
        report["agreement"] = scheduling_agreement.compare(1 if options.quick else 3)
        ratios = [row["ratio"] for row in report["agreement"]]
        print(f"threads to simulator, makespan: {min(ratios):.3f} to {max(ratios):.3f}")
    if "measured" in parts:
        report["measured"] = measured.measure(
            size=options.size,
            requests=options.requests,
            repeats=options.repeats,
            contenders=options.contenders.split(","),
            cpu_load=options.cpu_load,
            beside=options.beside,
        )
        _print_measured(report["measured"])
    if "gpu" in parts:
        report["gpu"] = _gpu()
        print("on a GPU:", report["gpu"])
    (options.out / "scheduling.json").write_text(json.dumps(report, indent=1))
    return report


def _simulate(report: dict[str, Any], parts: Sequence[str], options: argparse.Namespace) -> None:
    graphs = simulated.paper_graphs()
    if "simulated" in parts:
        pieces = {count for _, count in simulated.COLUMNS.values()} - {1}
        cut = {count: simulated.paper_graphs(count) for count in pieces}
        rows = report["simulated"] = simulated.compare_policies(
            {1: graphs} | cut, steady_s=0.0 if options.quick else simulated.STEADY_S
        )
        _print_simulated(rows)
        report["oracle"] = simulated.oracle_ratio(50 if options.quick else 1000)
        print(f"earliest_finish to the optimum on graphs of up to 8 layers, simulated: {report['oracle']}")
        plot_policies(rows, options.out / "policies.png")
        plot_growth(rows, options.out / "growth.png")
        scenario = simulated.SCENARIOS[0]
        costs = simulated.profiled([graphs[name] for name in set(scenario.networks)])
        rounds = simulated.run(graphs, scenario.networks, "earliest_finish", scenario.loads["60%"], costs)
        save_chrome_trace(options.out / "timeline_simulated.json", simulated.spans(rounds[-1]))
    if "costs" in parts:
        report["costs_simulated"] = simulated.compare_costs(graphs)
        print(f"cost model, simulated: {report['costs_simulated']}")


def _print_simulated(rows: Sequence[dict[str, Any]]) -> None:
    policies = list(rows[0]["makespan_s"])
    print("simulated, Xavier-like figures: makespan in ms (percent less than GPU only)")
    print(
        f"{'scenario':24}{'load':>32}"
        + "".join(f"{policy:>20}" for policy in policies)
        + "     bound     (cut)   paper's hardware"
    )
    for row in rows:
        cells = "".join(
            f"{1e3 * row['makespan_s'][p]:12.1f} ({row['less_than_gpu_only_percent'][p]:4.0f}%)"
            for p in policies
        )
        paper = row["papers_hardware_percent"]
        print(
            f"{row['scenario']:24}{row['load']:>32}{cells}{1e3 * row['lower_bound_s']:10.1f}"
            + f"{1e3 * row['lower_bound_cut_s']:10.1f}"
            + (f"{paper:18.1f}%" if paper else "")
        )
    worst = max(row["to_better_of_gpu_only_and_paper"] for row in rows)
    print(f"earliest_finish to the better of gpu_only and paper, at most: {worst:.3f}")


def _print_measured(rows: dict[str, dict[str, Any]]) -> None:
    first = next(iter(rows.values()))
    load = f", CPU load {first['cpu_load_achieved']:.0%}" if first["cpu_load"] else ""
    print(
        f"measured here: four networks at once on the CPU{load}"
        + f" beside {first['beside']}" * bool(first["beside"])
    )
    thread = rows.get("thread_per_network", {}).get("requests_per_s")
    for name, row in rows.items():
        times = " ".join(f"{seconds:.2f}" for seconds in row["seconds"])
        against = f"{row['requests_per_s'] / thread:6.2f} of a thread each" if thread else ""
        overhead = f", scheduler's overhead {row['overhead']:.2%}" if name.startswith("ours") else ""
        print(f"  {name:28} {row['requests_per_s']:8.2f} requests/s {against}  ({times} s){overhead}")


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


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


if __name__ == "__main__":
    main()
