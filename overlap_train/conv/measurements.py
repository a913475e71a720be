"""One convolution, its measured times, and the file that keeps them for other processes.

The user's cache directory has one small JSON file for each combination of conditions (`_support/caches.py`)
and threads. A file that cannot be read, written or understood is ignored: nothing here raises. Any thread.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tensorflow as tf

from overlap_train._support.arguments import require_real
from overlap_train._support.caches import conditions, convolution_times
from overlap_train._support.files import read_regular, replace_content
from overlap_train.options.threads import available_cores

__all__ = ["DIRECTIONS", "MATMUL", "STOCK", "ConvKey", "Timing", "load", "remove", "save"]


STOCK = "tf.nn.conv2d"
MATMUL = "matmul"
DIRECTIONS = ("forward", "input_gradient", "filter_gradient")
# On two cores, products of so few rows took 0.4 to 0.9 of the time of a 1x1 convolution, in all directions.
_FEW_PIXELS = 2048


@dataclass(frozen=True)
class ConvKey:
    """Describe one convolution in one direction.

    Attributes:
        direction: "forward", "input_gradient" or "filter_gradient".
        dtype: "float32" or "float64".
        input_shape: [batch, height, width, in_channels].
        filter_shape: [height, width, in_channels, out_channels].
        strides: [height, width].
        padding: "SAME" or "VALID".
        bias: whether a bias is added; forward only.
        relu: whether a ReLU follows; forward only.
        batch_assumed: whether the batch was unknown while tracing, so that `input_shape` holds a guess.
    """

    direction: str
    dtype: str
    input_shape: tuple[int, int, int, int]
    filter_shape: tuple[int, int, int, int]
    strides: tuple[int, int]
    padding: str
    bias: bool = False
    relu: bool = False
    batch_assumed: bool = field(default=False, compare=False)

    @property
    def output_shape(self) -> tuple[int, int, int, int]:
        """[batch, height, width, out_channels]."""
        sizes = []
        for size, kernel, stride in zip(
            self.input_shape[1:3], self.filter_shape[:2], self.strides, strict=True
        ):
            sizes.append(-(-(size if self.padding == "SAME" else size - kernel + 1) // stride))
        return self.input_shape[0], sizes[0], sizes[1], self.filter_shape[3]

    @property
    def flops(self) -> int:
        """Floating-point operations of the direct method; a product and a sum count as two."""
        return 2 * math.prod(self.output_shape) * math.prod(self.filter_shape[:3])

    @property
    def algorithms(self) -> tuple[str, ...]:
        """The algorithms that can replace `STOCK`."""
        if self.strides != (1, 1):
            return ("direct",)
        return {(3, 3): ("winograd", "direct"), (1, 1): (MATMUL, "direct")}.get(
            self.filter_shape[:2], ("direct",)
        )

    @property
    def untimed(self) -> str:
        """The algorithm to use without timing: one that is never slower than `STOCK`, or `STOCK` itself."""
        batch, height, width, _ = self.input_shape
        is_small = batch * height * width <= _FEW_PIXELS
        return MATMUL if is_small and MATMUL in self.algorithms else STOCK


@dataclass(frozen=True)
class Timing:
    """Hold the measured times of one shape.

    Attributes:
        key: the convolution.
        milliseconds: the fastest run of each algorithm by name, TensorFlow's included.
        chosen: the algorithm that "auto" uses.
    """

    key: ConvKey
    milliseconds: dict[str, float]
    chosen: str

    @property
    def speedup(self) -> float:
        """TensorFlow's time over the chosen algorithm's; 1 where TensorFlow's was chosen."""
        return self.milliseconds[STOCK] / self.milliseconds[self.chosen]

    @property
    def best_of_ours(self) -> float:
        """TensorFlow's time over our fastest algorithm's; below 1 where TensorFlow is faster."""
        ours = min(ms for name, ms in self.milliseconds.items() if name != STOCK)
        return self.milliseconds[STOCK] / ours


# A row takes some 300 bytes.
_MOST_BYTES, _MOST_ROWS = 1 << 22, 10_000
_SHORTEST_MS = 1e-6


def load() -> dict[ConvKey, Timing]:
    """Return the stored measurements of this machine; none if the file is absent, damaged or foreign."""
    path = _path()
    if path is None:
        return {}
    try:
        rows = json.loads(read_regular(path, most_bytes=_MOST_BYTES))
        return {timing.key: timing for timing in map(_timing, rows[:_MOST_ROWS])}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
        return {}


def save(timings: Iterable[Timing]) -> None:
    """Add measurements to those that other processes have stored meanwhile."""
    path = _path()
    if path is None:
        return
    rows = [dataclasses.asdict(timing) for timing in (load() | {t.key: t for t in timings}).values()]
    with contextlib.suppress(OSError):
        replace_content(path, json.dumps(rows))


def remove() -> None:
    """Delete the stored measurements of this machine."""
    path = _path()
    if path is not None:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def _path() -> Path | None:
    directory = convolution_times()
    if directory is None:
        return None
    threading = tf.config.threading
    facts = [
        conditions(),
        available_cores(),
        [device.name for device in tf.config.list_physical_devices("GPU")],
        (threading.get_intra_op_parallelism_threads(), threading.get_inter_op_parallelism_threads()),
    ]
    return directory / f"{hashlib.sha256(repr(facts).encode()).hexdigest()[:32]}.json"


def _timing(row: Any) -> Timing:
    """Return the timing in a row of the file; a key that no convolution has is never looked up."""
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in row["key"].items()
    }
    key = ConvKey(**(fields | {"batch_assumed": False}))
    names = (STOCK, *key.algorithms)
    milliseconds = {
        name: require_real("milliseconds", row["milliseconds"][name], minimum=_SHORTEST_MS) for name in names
    }
    return Timing(key, milliseconds, names[names.index(row["chosen"])])
