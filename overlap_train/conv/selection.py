"""algorithm="auto": times our algorithms beside TensorFlow's once for each shape, and takes the fastest.

The choice is made while a function is traced, outside its graph, so the graph holds the chosen operation
alone: where TensorFlow's wins, it is exactly what tf.nn.conv2d would have been, with all of grappler's
fusions.

Shared state: `_timings`, under `_lock`, so that one shape is timed once and nothing else is timed meanwhile.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import tensorflow as tf

__all__ = ["DIRECTIONS", "STOCK", "ConvKey", "Timing", "choose", "clear_timings", "operands", "timings"]

STOCK = "tf.nn.conv2d"
DIRECTIONS = ("forward", "input_gradient", "filter_gradient")
# Rounds at least, where they fit the budget; short convolutions get more, until `_ENOUGH_S` have gone by.
_ROUNDS, _MOST_ROUNDS = 9, 27
_BUDGET_S, _ENOUGH_S = 0.4, 0.1
# Ours must win by more than a noisy clock could pretend.
_MARGIN = 0.95


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
        """Operations of the direct method, a product and a sum counted as two."""
        batch, height, width, channels = self.output_shape
        return (
            2
            * batch
            * height
            * width
            * channels
            * self.filter_shape[0]
            * self.filter_shape[1]
            * self.filter_shape[2]
        )

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
        milliseconds: the fastest run of each algorithm, `STOCK` among them.
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


def choose(key: ConvKey, compute: Callable[[str], Callable[..., tf.Tensor]]) -> str:
    """The algorithm for one shape, timed now if it never was. Any thread; also while a function is traced.

    Args:
        key: the convolution.
        compute: gives, for an algorithm, the function of the operands (see `operands`) that computes it.
    """
    if 0 in key.input_shape or 0 in key.output_shape:
        # Nothing to time; and TensorFlow's oneDNN kernel gives an empty batch a wrong number of channels.
        return "direct"
    with _lock, tf.init_scope():
        timing = _timings.get(key)
        if timing is not None:
            return timing.chosen
        if not tf.executing_eagerly():  # a graph of TensorFlow 1: nothing can be run now
            return key.algorithms[0]
        timing = _timings[key] = _measure(key, compute)
        return timing.chosen


def operands(key: ConvKey) -> tuple[tf.Tensor, ...]:
    """Random operands: input and filter, or output gradient in place of what is sought, and the bias."""
    shapes: dict[str, tuple[tuple[int, ...], ...]] = {
        "forward": (key.input_shape, key.filter_shape, (key.filter_shape[3] if key.bias else 0,)),
        "input_gradient": (key.filter_shape, key.output_shape),
        "filter_gradient": (key.input_shape, key.output_shape),
    }
    # Stateless, so that timing a shape leaves the user's random numbers alone.
    return tuple(
        tf.random.stateless_uniform(shape, seed=(1, index), minval=-1, maxval=1, dtype=key.dtype)
        for index, shape in enumerate(shapes[key.direction])
    )


def _measure(key: ConvKey, compute: Callable[[str], Callable[..., tf.Tensor]]) -> Timing:
    """Times all algorithms in rounds, so that a disturbance meets all of them, each round in an order of its
    own, so that none has always the same one's caches; compiled, as a training step is."""
    names = (STOCK, *key.algorithms)
    arguments = operands(key)
    functions = {name: tf.function(compute(name), autograph=False) for name in names}
    samples: dict[str, list[float]] = {name: [] for name in names}
    for function in functions.values():
        function(*arguments)
    order, rng = list(names), random.Random(0)
    began = time.perf_counter()
    for rounds in range(1, _MOST_ROUNDS + 1):
        rng.shuffle(order)
        for name in order:
            start = time.perf_counter()
            _wait_for(functions[name](*arguments))
            samples[name].append(1e3 * (time.perf_counter() - start))
        spent_s = time.perf_counter() - began
        if rounds >= 3 and spent_s > (_ENOUGH_S if rounds >= _ROUNDS else _BUDGET_S):
            break
    # The fastest, not the median: what disturbs a run can only lengthen it.
    milliseconds = {name: min(times) for name, times in samples.items()}
    best = min(key.algorithms, key=lambda name: milliseconds[name])
    chosen = best if milliseconds[best] < _MARGIN * milliseconds[STOCK] else STOCK
    return Timing(key, milliseconds, chosen)


def _wait_for(result: tf.Tensor) -> None:
    """On a CPU a result is there when the call returns, unless asked otherwise; a copy of it takes time."""
    if "CPU" not in result.device or not tf.config.experimental.get_synchronous_execution():
        result.numpy()
