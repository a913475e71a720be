"""algorithm="auto": times our algorithms beside TensorFlow's once for each shape, and takes the fastest.

The choice is made while a function is traced, outside its graph, so the graph holds the chosen operation alone:
where TensorFlow's wins, it is exactly what tf.nn.conv2d would have been, with all of grappler's fusions.

Shared state: `_timings`, under `_lock`, so that one shape is timed once and nothing else is timed meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from overlap_train.conv import library

__all__ = ["STOCK", "ConvKey", "Timing", "choose", "clear_timings", "timings"]

STOCK = "tf.nn.conv2d"
DIRECTIONS = ("forward", "input_gradient", "filter_gradient")

_ASSUMED_BATCH = 8
_ROUNDS = 9
_BUDGET_S = 0.4
# Ours must win by more than a noisy clock could pretend.
_MARGIN = 0.97


@dataclass(frozen=True)
class ConvKey:
    """One convolution in one direction.

    Attributes:
        direction: "forward", "input_gradient" or "filter_gradient".
        dtype: "float32" or "float64".
        input_shape: [batch, height, width, in_channels].
        filter_shape: [height, width, in_channels, out_channels].
        strides: [height, width].
        padding: "SAME" or "VALID".
        bias: whether a bias is added; forward only.
        relu: whether a ReLU follows; forward only.
        batch_assumed: the batch was unknown while tracing, and `input_shape` holds a guess.
    """

    direction: str
    dtype: str
    input_shape: tuple[int, int, int, int]
    filter_shape: tuple[int, int, int, int]
    strides: tuple[int, int]
    padding: str
    bias: bool = False
    relu: bool = False
    batch_assumed: bool = False

    @property
    def output_shape(self) -> tuple[int, int, int, int]:
        """[batch, height, width, out_channels]."""
        sizes = []
        for size, kernel, stride in zip(self.input_shape[1:3], self.filter_shape[:2], self.strides, strict=True):
            sizes.append(-(-(size if self.padding == "SAME" else size - kernel + 1) // stride))
        return self.input_shape[0], sizes[0], sizes[1], self.filter_shape[3]

    @property
    def flops(self) -> int:
        """Operations of the direct method, a product and a sum counted as two."""
        batch, height, width, channels = self.output_shape
        return 2 * batch * height * width * channels * self.filter_shape[0] * self.filter_shape[1] * self.filter_shape[2]

    @property
    def algorithms(self) -> tuple[str, ...]:
        """Those of ours that can compute it."""
        winograd = self.filter_shape[:2] == (3, 3) and self.strides == (1, 1)
        return ("winograd", "direct") if winograd else ("direct",)


@dataclass(frozen=True)
class Timing:
    """What was measured for one shape.

    Attributes:
        key: the convolution.
        milliseconds: median time of each algorithm, `STOCK` among them.
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
        """TensorFlow's time over our fastest algorithm's; below 1 where we lose."""
        ours = min(ms for name, ms in self.milliseconds.items() if name != STOCK)
        return self.milliseconds[STOCK] / ours


_timings: dict[ConvKey, Timing] = {}
_lock = threading.Lock()


def timings() -> tuple[Timing, ...]:
    """Everything timed so far in this process, in order. Any thread."""
    with _lock:
        return tuple(_timings.values())


def clear_timings() -> None:
    """Forgets all choices; shapes are timed again when they are traced next."""
    with _lock:
        _timings.clear()


def run(key: ConvKey, algorithm: str, first: Any, second: Any, bias: Any = None) -> tf.Tensor:
    """Computes `key` by one algorithm.

    Args:
        key: direction, strides and padding; the shapes are taken from the tensors.
        algorithm: "direct", "winograd" or `STOCK`.
        first: the input; for the input gradient the filter.
        second: the filter; for the gradients that with respect to the output.
        bias: [out_channels] or None; forward only.
    """
    raise NotImplementedError


def choose(key: ConvKey) -> str:
    """The algorithm for one shape, timed now if it never was. Any thread; also while a function is traced."""
    with _lock:
        timing = _timings.get(key)
        if timing is None:
            with tf.init_scope():
                if not tf.executing_eagerly():
                    return _guess(key)
                timing = _timings[key] = _measure(key)
        return timing.chosen


def _guess(key: ConvKey) -> str:
    return ""
