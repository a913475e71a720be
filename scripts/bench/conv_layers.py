"""Times the convolution layers of U-Net, VGG16 and ResNet50: ours, each algorithm, beside tf.nn.conv2d.

    python -m scripts.bench.conv_layers --network unet --batch 1 --output results.json

Each contestant is a compiled function of tensors; they run in rounds, each in an order of its own, since what
ran before leaves the caches warm or cold. A ratio is the median of the rounds' ratios, so that it does not
depend on how fast the machine was in which round. GFLOP/s count the direct method's
operations for all, so Winograd's can exceed the machine's peak.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

from overlap_train.conv import instruction_set, library, selection
from overlap_train.conv.convolution import Convolution
from overlap_train.conv.shapes import DIRECTIONS, STOCK
from scripts.bench.conv_shapes import LAYERS, Layer

__all__ = ["Row", "describe_auto", "measure", "summarise"]


_LEAST_ROUNDS = 9


@dataclass(frozen=True)
class Row:
    """One shape, measured.

    Attributes:
        layer: the shape.
        batch: images.
        direction: forward (with bias and ReLU), input_gradient or filter_gradient.
        gflop: operations of the direct method, in billions.
        milliseconds: each contestant's times, round by round: `STOCK`, our algorithms, and "auto".
        chosen: what "auto" had chosen before.
    """

    layer: Layer
    batch: int
    direction: str
    gflop: float
    milliseconds: dict[str, list[float]]
    chosen: str

    def ratio(self, contestant: str) -> float | None:
        """How many times as fast as tf.nn.conv2d; None if the contestant cannot do the shape."""
        times = self.milliseconds.get(contestant)
        if times is None:
            return None
        return statistics.median(s / t for s, t in zip(self.milliseconds[STOCK], times, strict=True))


def _interleave(functions: dict[str, Callable[[], Any]], budget_s: float) -> dict[str, list[float]]:
    samples: dict[str, list[float]] = {name: [] for name in functions}
    order, rng = list(functions), random.Random(0)
    for function in functions.values():
        function()
        function()
    deadline = time.perf_counter() + budget_s
    while len(samples[STOCK]) < _LEAST_ROUNDS or (
        time.perf_counter() < deadline and len(samples[STOCK]) < 101
    ):
        rng.shuffle(order)
        for name in order:
            start = time.perf_counter()
            functions[name]()
            samples[name].append(1e3 * (time.perf_counter() - start))
    return samples


def _quartiles(times: Sequence[float]) -> tuple[float, float, float]:
    low, middle, high = statistics.quantiles(times, n=4)
    return low, middle, high


def measure(layer: Layer, batch: int, direction: str, budget_s: float = 1.0) -> Row:
    """Times one shape in one direction, in rounds: for `budget_s`, and at least `_LEAST_ROUNDS` of them."""
    key = layer.key(direction, batch)
    convolution = Convolution.of(key)
    chosen = selection.choose(key, lambda name: convolution.function(direction, name, key))
    operands = selection.operands(key)

    def contestant(algorithm: str) -> Callable[[], Any]:
        function = tf.function(convolution.function(direction, algorithm, key), autograph=False)
        concrete = function.get_concrete_function(*operands)
        return lambda: concrete(*operands)

    contestants = {name: contestant(name) for name in (STOCK, *key.algorithms)}
    contestants["auto"] = contestant(chosen)
    return Row(layer, batch, direction, key.flops / 1e9, _interleave(contestants, budget_s), chosen)


def _geometric_mean(values: Iterable[float]) -> float:
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def summarise(rows: Sequence[Row]) -> dict[str, dict[str, dict[str, float]]]:
    """Geometric mean and minimum of the ratios, by direction and contestant; 3×3 layers of 64 channels up."""
    result: dict[str, dict[str, dict[str, float]]] = {}
    for direction in DIRECTIONS:
        for contestant in ("winograd", "direct", "auto"):
            deep = [
                r for r in rows if r.direction == direction and r.layer.inputs >= 64 and r.layer.kernel == 3
            ]
            ratios = [ratio for row in deep if (ratio := row.ratio(contestant)) is not None]
            if ratios:
                entry = {"geometric_mean": _geometric_mean(ratios), "minimum": min(ratios)}
                result.setdefault(direction, {})[contestant] = entry
    return result


def describe_auto(rows: Sequence[Row]) -> list[str]:
    """The extremes of "auto" over all layers: where it is ours, and where it is tf.nn.conv2d itself.

    The second kind compares an operation with itself, so what differs from 1 there is what the measurement
    is worth; of the first kind none should be below 1.
    """
    lines = []
    for ours, label in ((True, "ours"), (False, "tf.nn.conv2d itself")):
        ratios = [r for row in rows if (row.chosen != STOCK) == ours and (r := row.ratio("auto")) is not None]
        if ratios:
            lines.append(
                f"auto, {len(ratios)} of {len(rows)} rows where it is {label}: "
                f"{min(ratios):.2f} to {max(ratios):.2f}"
            )
    return lines


def _format(row: Row) -> str:
    layer = row.layer
    image = f"{row.batch}×{layer.height}×{layer.width}×{layer.inputs}"
    shape = f"{image}→{layer.outputs} {layer.kernel}/{layer.stride}"
    cells = []
    for name in (STOCK, "winograd", "direct", "auto"):
        times, ratio = row.milliseconds.get(name), row.ratio(name)
        if times is None or ratio is None:
            cells.append(" " * 24)
        else:
            median = statistics.median(times)
            cells.append(f"{median:9.3f} {1e3 * row.gflop / median:7.0f} {ratio:6.2f}")
    return f"{shape:<28} {row.direction:<16} {' '.join(cells)}  {row.chosen}"


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    model = platform.processor()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [
            line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line
        ]
        model = names[0] if names else model
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "cpu": model,
        "cores": os.cpu_count(),
        "tensorflow": tf.version.VERSION,
        "instruction_set": instruction_set() if library.is_available() else None,
    }


def _plot(rows: Sequence[Row], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(len(DIRECTIONS), 1, figsize=(10, 9), sharex=True, layout="constrained")
    for axis, direction in zip(axes, DIRECTIONS, strict=True):
        shown = [row for row in rows if row.direction == direction]
        labels = [
            f"{r.layer.height}×{r.layer.width}\n{r.layer.inputs}→{r.layer.outputs}\n"
            f"{r.layer.kernel}/{r.layer.stride}"
            for r in shown
        ]
        positions = np.arange(len(shown))
        for offset, name in enumerate(("winograd", "direct", "auto")):
            heights = [row.ratio(name) or 0.0 for row in shown]
            axis.bar(positions + 0.27 * (offset - 1), heights, 0.27, label=name)
        axis.axhline(1.0, color="black", linewidth=0.8)
        axis.set_ylabel(f"{direction}\ntimes as fast as tf.nn")
        axis.set_xticks(positions, labels, fontsize=7)
    axes[0].legend(ncols=3, loc="lower right", bbox_to_anchor=(1.0, 1.0), frameon=False)
    figure.savefig(path)
    plt.close(figure)


def _as_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [
        {
            **row.layer.__dict__,
            "batch": row.batch,
            "direction": row.direction,
            "gflop": row.gflop,
            "milliseconds_quartiles": {name: _quartiles(times) for name, times in row.milliseconds.items()},
            "rounds": len(row.milliseconds[STOCK]),
            "ratio": {name: row.ratio(name) for name in row.milliseconds},
            "chosen": row.chosen,
        }
        for row in rows
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", choices=sorted(LAYERS), default="unet")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--budget_s", type=float, default=1.0, help="seconds for each shape and direction")
    parser.add_argument("--output", type=Path, help="a JSON file; a plot goes beside it")
    options = parser.parse_args(arguments)
    library.load()
    print(
        f"{'layer':<28} {'direction':<16} "
        + " ".join(f"{n + ': ms GFLOP/s ratio':>24}" for n in ("tf.nn", "winograd", "direct", "auto"))
    )
    rows = []
    for layer in LAYERS[options.network]:
        for direction in DIRECTIONS:
            rows.append(measure(layer, options.batch, direction, options.budget_s))
            print(_format(rows[-1]), flush=True)
    summary = summarise(rows)
    for direction, contestants in summary.items():
        for name, entry in contestants.items():
            print(
                f"3×3, 64 channels or more, {direction}, {name}: "
                f"geometric mean {entry['geometric_mean']:.2f}, "
                f"smallest {entry['minimum']:.2f}"
            )
    for line in describe_auto(rows):
        print(line)
    if options.output is not None:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        document = {
            "machine": machine(),
            "network": options.network,
            "summary": summary,
            "rows": _as_json(rows),
        }
        options.output.write_text(json.dumps(document, indent=1))
        _plot(rows, options.output.with_suffix(".png"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
