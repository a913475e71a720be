"""Zero-copy beside what a user would write without it, as JSON, Markdown and plots.

    scripts/compare_zero_copy.sh --output_dir results/zero_copy

Three parts: the hand-over from NumPy to the first TensorFlow operation, 4 KiB to 64 MiB; one epoch from a
memory-mapped array of 4 GiB; on a GPU, mapped memory beside a pinned copy.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import os
import platform
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from overlap_train import errors, zero_copy
from scripts.bench import command
from scripts.bench.journal import Journal
from scripts.bench.publish import publish
from scripts.bench.zero_copy_handover import SIZES, HandOver, measure_hand_overs
from scripts.bench.zero_copy_page import finding
from scripts.bench.zero_copy_page import report as _report
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
    line = _command()
    options = line.parse(arguments)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow reads it once, when it is imported
    output = Path(options.output_dir)
    with line.journal(options) as journal:
        hand_overs = _hand_overs(options, journal)
        training, skipped = _train(options, journal)
        results = {
            "machine": _machine(),
            "hand_overs": [asdict(entry) for entry in hand_overs],
            "training": [asdict(run) for run in training],
            "training_unavailable": skipped,
            "gpu": journal.once("gpu", lambda: _measure_gpu(options.sizes)),
            "measured_elsewhere": MEASURED_ELSEWHERE,
            "summary": summarize(hand_overs, training),
        }
        (output / "zero_copy.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
        for kind in ("png", "svg"):
            plot_hand_overs(hand_overs, output / f"hand_over.{kind}")
            if training:
                plot_training(training, output / f"training.{kind}")
        report = _report(results, hand_overs, training)
        (output / "zero_copy.md").write_text(report, encoding="utf-8")
        print(report)
        if options.publish:
            page = finding(results, series=options.publish, command=line.as_typed, folder=output)
            print(f"Published: {publish(page, journal.machine, journal.others_line)}")
    return 0


def _hand_overs(options: argparse.Namespace, journal: Journal) -> list[HandOver]:
    """Returns the hand-overs of all sizes, each size an entry of the journal."""

    def measured(size: int) -> list[dict[str, Any]]:
        return [asdict(entry) for entry in measure_hand_overs([size], budget_s=options.budget_s)]

    return [
        HandOver(**entry)
        for size in options.sizes
        for entry in journal.once(f"hand-over/{size}", functools.partial(measured, size))
    ]


def _train(options: argparse.Namespace, journal: Journal) -> tuple[list[TrainingRun], str | None]:
    """Returns the runs, or why there are none."""
    if not options.data_gib:
        return [], "--data-gib is 0"

    def kept(key: str, train: Callable[[], TrainingRun]) -> TrainingRun:
        return TrainingRun(**journal.once(f"training/{key}", lambda: asdict(train())))

    data_bytes = int(options.data_gib * (1 << 30))
    try:
        runs = compare_training(
            data_bytes, repeats=options.repeats, ways=options.ways, folder=options.folder, kept=kept
        )
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
    import tensorflow as tf

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


def _convolution(x: Any) -> Any:
    """A 3x3 convolution over 64 channels: reads its input several times. At least 512 elements."""
    import tensorflow as tf

    images = tf.reshape(x[: tf.size(x) // 512 * 512], (1, -1, 8, 64))
    return tf.nn.conv2d(images, tf.ones((3, 3, 64, 64)), 1, "SAME")[0, 0, 0, :1]


def _machine() -> dict[str, Any]:
    import tensorflow as tf

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


def _command() -> command.Command:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    add = parser.add_argument
    add("--data-gib", type=float, default=4.0, help="size of the mapped array; 0: none (%(default)s)")
    add("--repeats", type=int, default=3, help="epochs of each way (%(default)s)")
    add("--ways", nargs="+", default=WAYS, choices=WAYS, help="which ways to train (all)")
    add("--folder", help="where to put the mapped array (the system's temporary folder)")
    add("--budget-s", type=float, default=1.0, help="seconds for each size of hand-over (%(default)s)")
    add("--sizes", type=int, nargs="+", default=SIZES, help="bytes of each hand-over")
    return command.Command(
        parser,
        script="scripts/compare_zero_copy.sh",
        series="zero-copy",
        output_dir="results/zero_copy",
        also=("--output",),
    )


if __name__ == "__main__":
    sys.exit(command.run(main))
