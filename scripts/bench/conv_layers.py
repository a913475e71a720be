"""Times the convolution layers of U-Net, VGG16 and ResNet50: ours, each algorithm, next to tf.nn.conv2d.

    python -m scripts.bench.conv_layers unet 1 1.0      batch size, and seconds for a shape and direction

Each contestant is a compiled function of tensors; they run in rounds, each in an order of its own, since what
ran before leaves the caches warm or cold. A ratio is the median of the rounds' ratios, so that it does not
depend on how fast the machine was in which round. GFLOP/s count the direct method's operations for all, so
Winograd's can exceed the machine's peak. The last line of standard output is JSON.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

from overlap_train.conv import library, selection
from overlap_train.conv.convolution import Convolution
from overlap_train.conv.selection import DIRECTIONS, STOCK
from scripts.bench.conv_shapes import LAYERS, Layer

_LEAST_ROUNDS, _MOST_ROUNDS = 9, 101


@dataclass(frozen=True)
class Row:
    """One shape, measured."""

    layer: Layer
    batch: int
    direction: str
    gflop: float  # operations of the direct method, in billions
    milliseconds: dict[str, list[float]]  # by contestant, round by round: `STOCK`, our algorithms, "auto"
    chosen: str  # what "auto" had chosen before

    def ratio(self, contestant: str) -> float | None:
        """How many times as fast as tf.nn.conv2d; None if the contestant cannot do the shape."""
        times = self.milliseconds.get(contestant)
        if times is None:
            return None
        return statistics.median(s / t for s, t in zip(self.milliseconds[STOCK], times, strict=True))

    def as_json(self) -> dict[str, Any]:
        """Returns the row with quartiles in place of all rounds."""
        return {
            **asdict(self.layer),
            "batch": self.batch,
            "direction": self.direction,
            "gflop": self.gflop,
            "milliseconds_quartiles": {n: statistics.quantiles(t, n=4) for n, t in self.milliseconds.items()},
            "rounds": len(self.milliseconds[STOCK]),
            "ratio": {name: self.ratio(name) for name in self.milliseconds},
            "chosen": self.chosen,
        }


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
    return Row(layer, batch, direction, key.flops / 1e9, interleave(contestants, budget_s), chosen)


def interleave(functions: dict[str, Callable[[], Any]], budget_s: float) -> dict[str, list[float]]:
    samples: dict[str, list[float]] = {name: [] for name in functions}
    order, rng = list(functions), random.Random(0)
    for function in functions.values():
        function()
        function()
    deadline = time.perf_counter() + budget_s
    for done in range(_MOST_ROUNDS):
        if done >= _LEAST_ROUNDS and time.perf_counter() >= deadline:
            break
        rng.shuffle(order)
        for name in order:
            start = time.perf_counter()
            functions[name]()
            samples[name].append(1e3 * (time.perf_counter() - start))
    return samples


def summarise(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Geometric mean and minimum of the ratios of "auto", by direction; 3×3 layers of 64 channels up."""
    result = {}
    for direction in DIRECTIONS:
        deep = [r for r in rows if r.direction == direction and r.layer.inputs >= 64 and r.layer.kernel == 3]
        if ratios := [ratio for row in deep if (ratio := row.ratio("auto")) is not None]:
            result[direction] = {"geometric_mean": statistics.geometric_mean(ratios), "minimum": min(ratios)}
    return result


def main(network: str, batch: str, budget_s: str) -> None:
    """Measures a network at one batch size."""
    library.load()
    rows = []
    for layer in LAYERS[network]:
        for direction in DIRECTIONS:
            rows.append(row := measure(layer, int(batch), direction, float(budget_s)))
            ratio = row.ratio("auto")
            print(f"{layer}, {direction}: {ratio:.2f} by {row.chosen}", file=sys.stderr, flush=True)
    found = {"network": network, "summary": summarise(rows), "rows": [row.as_json() for row in rows]}
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
