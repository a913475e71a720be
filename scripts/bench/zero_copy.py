"""Zero-copy beside what a user would write without it, as JSON, Markdown and plots.

    scripts/compare_zero_copy.sh --output results/zero_copy

Three parts: the hand-over from NumPy to the first TensorFlow operation, 4 KiB to 64 MiB; one epoch from a
memory-mapped array of 4 GiB; on a GPU, mapped memory beside a pinned copy.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import signal
import statistics
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

# TensorFlow reads this once, on import.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

from overlap_train import errors, zero_copy
from scripts.bench.zero_copy_handover import SIZES, HandOver, measure_hand_overs
from scripts.bench.zero_copy_plots import plot_hand_overs, plot_training
from scripts.bench.zero_copy_training import WAYS, TrainingRun, compare_training

__all__ = ["MEASURED_ELSEWHERE", "main", "summarize"]

MEASURED_ELSEWHERE = {
    "source": "P3: GoogLeNet, one 224x224 image, 100 runs each way, power meter at 1 kHz",
    "machine": "NVIDIA Jetson TK1, whose CPU and GPU share their memory",
    "pinned_copy": {"seconds": 0.46, "energy_mwh": 0.58},
    "mapped": {"seconds": 0.41, "energy_mwh": 0.37},
}
_BAR_BYTES = 16 << 20
_COMPARED = (
    ("zero_copy", "from_tensor_slices"),
    ("zero_copy", "from_tensor_slices_batched"),
    ("trainer", "keras_fit"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the comparison; returns 0, whatever it shows."""
    options = _parser().parse_args(arguments)
    # The mapped array is large: let its folder be removed also when somebody ends the comparison.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    output = Path(options.output)
    output.mkdir(parents=True, exist_ok=True)
    hand_overs = measure_hand_overs(options.sizes, budget_s=options.budget_s)
    training, skipped = _train(options)
    results = {
        "machine": _machine(),
        "hand_overs": [asdict(entry) for entry in hand_overs],
        "training": [asdict(run) for run in training],
        "training_unavailable": skipped,
        "gpu": _measure_gpu(options.sizes),
        "measured_elsewhere": MEASURED_ELSEWHERE,
        "summary": summarize(hand_overs, training),
    }
    (output / "zero_copy.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
    plot_hand_overs(hand_overs, output / "hand_over.png")
    if training:
        plot_training(training, output / "training.png")
    report = _report(results, hand_overs, training)
    (output / "zero_copy.md").write_text(report, encoding="utf-8")
    print(report)
    return 0


def _train(options: argparse.Namespace) -> tuple[list[TrainingRun], str | None]:
    """Returns the runs, or why there are none."""
    if not options.data_gib:
        return [], "--data-gib is 0"
    data_bytes = int(options.data_gib * (1 << 30))
    try:
        runs = compare_training(data_bytes, repeats=options.repeats, ways=options.ways, folder=options.folder)
    except (MemoryError, OSError) as error:
        return [], str(error)
    return runs, None


def summarize(hand_overs: Sequence[HandOver], training: Sequence[TrainingRun]) -> dict[str, float]:
    """Returns the ratios that the claims rest on; those whose parts were not measured are left out."""
    summary: dict[str, float] = {}
    at = {(entry.way, entry.size_bytes): entry for entry in hand_overs}
    shared = [entry.median_us for entry in hand_overs if entry.way == "as_tensor"]
    if shared:
        summary["as_tensor_slowest_size_over_quickest"] = max(shared) / min(shared)
    if ("as_tensor", _BAR_BYTES) in at:
        ours, theirs = at["as_tensor", _BAR_BYTES], at["convert_to_tensor", _BAR_BYTES]
        summary["times_as_fast_at_16_mib"] = theirs.median_us / ours.median_us
        summary["times_as_fast_to_first_operation_at_16_mib"] = (
            theirs.first_operation_us / ours.first_operation_us
        )
    medians = {way: _median_run(training, way) for way in {run.way for run in training}}
    for way, baseline in _COMPARED:
        if way in medians and baseline in medians:
            (seconds, peak), (baseline_seconds, baseline_peak) = medians[way], medians[baseline]
            summary[f"peak_rss_of_{way}_over_{baseline}"] = peak / baseline_peak
            summary[f"time_of_{way}_over_{baseline}"] = seconds / baseline_seconds
    return summary


def _median_run(training: Sequence[TrainingRun], way: str) -> tuple[float, float]:
    runs = [run for run in training if run.way == way]
    return (
        statistics.median(run.seconds for run in runs),
        statistics.median(run.peak_rss_bytes for run in runs),
    )


def _measure_gpu(sizes: Sequence[int]) -> dict[str, Any]:
    kernels = {
        "copy": lambda x: tf.negative(x)[:1],
        "one_pass": tf.reduce_sum,
        "convolution": _convolution,
    }
    try:
        measured = {
            name: zero_copy.measure_crossover(sizes, kernel=kernel, keep=name == "one_pass")
            for name, kernel in kernels.items()
        }
    except errors.NativeUnavailableError as error:
        return {"unavailable": str(error)}
    return {name: asdict(crossover) for name, crossover in measured.items()}


def _convolution(x: tf.Tensor) -> tf.Tensor:
    """A 3x3 convolution over 64 channels: reads its input several times. At least 512 elements."""
    images = tf.reshape(x[: tf.size(x) // 512 * 512], (1, -1, 8, 64))
    return tf.nn.conv2d(images, tf.ones((3, 3, 64, 64)), 1, "SAME")[0, 0, 0, :1]


def _machine() -> dict[str, Any]:
    processor = platform.processor() or platform.machine()
    with open("/proc/cpuinfo", encoding="utf-8") as cpuinfo:
        names = {line.partition(":")[2].strip() for line in cpuinfo if line.startswith("model name")}
    return {
        "date": datetime.date.today().isoformat(),
        "cpu": ", ".join(sorted(names)) or processor,
        "cores": os.cpu_count(),
        "gpus": [device.name for device in tf.config.list_physical_devices("GPU")],
        "tensorflow": tf.__version__,
        "python": platform.python_version(),
    }


def _report(results: dict[str, Any], hand_overs: Sequence[HandOver], training: Sequence[TrainingRun]) -> str:
    machine = results["machine"]
    lines = [
        f"# Zero-copy, measured {machine['date']} on {machine['cores']} cores of {machine['cpu']}",
        "",
        "| size, KiB | way | median, µs | 10% to 90%, µs | to the first operation, µs | bytes copied |",
        "|---:|---|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {entry.size_bytes >> 10} | {entry.way} | {entry.median_us:.1f} "
        f"| {entry.p10_us:.1f} to {entry.p90_us:.1f} | {entry.first_operation_us:.1f} "
        f"| {entry.bytes_copied} |"
        for entry in hand_overs
    ]
    if training:
        lines += ["", f"One epoch from {training[0].data_bytes / (1 << 30):.2f} GiB of synthetic images:", ""]
        lines += [
            "| way | seconds | peak RSS, MiB | of it before the data | last loss |",
            "|---|---:|---:|---:|---:|",
        ]
        lines += [
            f"| {run.way} | {run.seconds:.1f} | {run.peak_rss_bytes >> 20} | {run.start_rss_bytes >> 20} "
            f"| {run.loss:.4f} |"
            for run in training
        ]
    if results["training_unavailable"]:
        lines += ["", f"No epoch was trained: {results['training_unavailable']}"]
    lines += ["", "Ratios:", ""] + [f"- {name}: {value:.3g}" for name, value in results["summary"].items()]
    gpu = results["gpu"]
    lines += ["", f"GPU: {gpu.get('unavailable') or json.dumps(gpu)}"]
    elsewhere = results["measured_elsewhere"]
    lines += [
        "",
        f"Measured elsewhere, {elsewhere['source']}, {elsewhere['machine']}: "
        "pinned copy 0.46 s and 0.58 mWh, mapped 0.41 s and 0.37 mWh.",
    ]
    return "\n".join(lines) + "\n"


def _parser() -> argparse.ArgumentParser:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    add = parser.add_argument
    add("--output", default="results/zero_copy", help="folder for the results (%(default)s)")
    add("--data-gib", type=float, default=4.0, help="size of the mapped array; 0: none (%(default)s)")
    add("--repeats", type=int, default=3, help="epochs of each way (%(default)s)")
    add("--ways", nargs="+", default=WAYS, choices=WAYS, help="which ways to train (all)")
    add("--folder", help="where to put the mapped array (the system's temporary folder)")
    add("--budget-s", type=float, default=1.0, help="seconds for each size of hand-over (%(default)s)")
    add("--sizes", type=int, nargs="+", default=SIZES, help="bytes of each hand-over")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
