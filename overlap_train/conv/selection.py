"""algorithm="auto": times our algorithms and TensorFlow's once for each shape, and takes the fastest.

What one process has timed serves all others on the machine: the user's cache directory has one small JSON
file for each combination of conditions (`_support/caches.py`) and threads. A file that cannot be read,
written or understood is ignored.

The choice is made while a function is traced, outside its graph, so the graph holds the chosen operation
alone: where TensorFlow's wins, it is exactly what tf.nn.conv2d would have been, with all of grappler's
fusions.

Shared state: `_timings` and `_stored`, under `_lock`, so that one shape is timed once and nothing else is
timed meanwhile.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import random
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tensorflow as tf

from overlap_train._support.arguments import require_items, require_real
from overlap_train._support.caches import conditions, convolution_times
from overlap_train._support.files import read_regular, replace_content
from overlap_train.options.threads import available_cores, ways_are_fixed

STOCK = "tf.nn.conv2d"
MATMUL = "matmul"
DIRECTIONS = ("forward", "input_gradient", "filter_gradient")
# On two cores, products of so few rows took 0.4 to 0.9 of the time of a 1x1 convolution, in all directions.
_FEW_PIXELS = 2048
# Of fewer input channels, Winograd's filter gradient takes three to seven times as long as the direct one.
_FEW_CHANNELS = 8


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

    @property
    def by_shape(self) -> str:
        """The algorithm that has mostly been the fastest for such a shape, on any machine."""
        few = self.direction == "filter_gradient" and self.filter_shape[2] < _FEW_CHANNELS
        return "direct" if few else self.algorithms[0]


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
    def best_of_ours(self) -> float:
        """TensorFlow's time over our fastest algorithm's; below 1 where TensorFlow is faster."""
        ours = min(ms for name, ms in self.milliseconds.items() if name != STOCK)
        return self.milliseconds[STOCK] / ours


# A row takes some 300 bytes.
_MOST_BYTES, _MOST_ROWS = 1 << 22, 10_000
_SHORTEST_MS = 1e-6


def load_stored() -> dict[ConvKey, Timing]:
    """Return the stored measurements of this machine; none if the file is absent, damaged or foreign."""
    path = _path()
    if path is None:
        return {}
    try:
        rows = json.loads(read_regular(path, most_bytes=_MOST_BYTES))
        return {timing.key: timing for timing in map(_timing, rows[:_MOST_ROWS])}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
        return {}


def store(timings: Iterable[Timing]) -> None:
    """Add measurements to those that other processes have stored meanwhile."""
    path = _path()
    if path is None:
        return
    rows = [dataclasses.asdict(timing) for timing in (load_stored() | {t.key: t for t in timings}).values()]
    with contextlib.suppress(OSError):
        replace_content(path, json.dumps(rows))


def remove_stored() -> None:
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


# Rounds at least, where they fit the budget; short convolutions get more, until `_ENOUGH_S` have gone by.
_ROUNDS, _MOST_ROUNDS = 9, 27
_BUDGET_S, _ENOUGH_S = 0.4, 0.1
# Ours must win by more than a noisy clock could pretend.
_MARGIN = 0.95


_timings: dict[ConvKey, Timing] = {}
_stored: dict[ConvKey, Timing] | None = None  # by other processes; None until it is read
_lock = threading.Lock()
_local = threading.local()


def clear_timings() -> None:
    """Forget all timings, also those on disk; shapes are timed again when they are traced next."""
    remove_stored()
    forget_process()


def forget_process() -> None:
    """Forget the timings of this process; those on disk are read again."""
    global _stored
    with _lock:
        _timings.clear()
        _stored = None


def only_known() -> contextlib.ExitStack:
    """Let this thread time nothing: a shape that was never timed takes `ConvKey.untimed`."""
    before = getattr(_local, "only_known", False)
    _local.only_known = True
    undo = contextlib.ExitStack()
    undo.callback(setattr, _local, "only_known", before)
    return undo


def choose(key: ConvKey, compute: Callable[[str], Callable[..., tf.Tensor]]) -> str:
    """The algorithm for one shape, timed now if it never was. Any thread; also while a function is traced."""
    if 0 in key.input_shape or 0 in key.output_shape:
        # Nothing to time; and TensorFlow's oneDNN kernel gives an empty batch a wrong number of channels.
        return "direct"
    if ways_are_fixed():
        return key.by_shape
    with _lock, tf.init_scope():
        timing = _lookup(key)
        if timing is not None:
            return timing.chosen
        if getattr(_local, "only_known", False):
            return key.untimed
        if not tf.executing_eagerly():  # a graph of TensorFlow 1: nothing can be run now
            return key.algorithms[0]
        timing = _timings[key] = _measure(key, compute)
        store([timing])
        return timing.chosen


def _lookup(key: ConvKey) -> Timing | None:
    """Return the timing of a convolution by this process or another; the lock is held."""
    global _stored
    if key not in _timings:
        if _stored is None:
            _stored = load_stored()
        if key in _stored:
            _timings[key] = _stored[key]
    return _timings.get(key)


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
    """Time all algorithms in rounds, compiled as a training step is, so that a disturbance affects all.

    The order changes from round to round, so that no algorithm always follows the same other one.
    """
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
    ours = min(key.algorithms, key=lambda name: milliseconds[name])
    fastest = ours if milliseconds[ours] < _MARGIN * milliseconds[STOCK] else STOCK
    return Timing(key, milliseconds, fastest)


def _wait_for(result: tf.Tensor) -> None:
    """Wait for a result, without copying it; on a CPU it is there when a synchronous call returns."""
    if "CPU" not in result.device or not tf.config.experimental.get_synchronous_execution():
        tf.test.experimental.sync_devices()


def report() -> tuple[Timing, ...]:
    """Return the times that `algorithm="auto"` has measured, for each shape and algorithm. Any thread."""
    with _lock:
        return tuple(_timings.values())


def format_report(rows: Iterable[Timing] | None = None) -> str:
    """Return the report as a table, with times in milliseconds.

    The ratio is TensorFlow's time over that of our fastest algorithm, also where TensorFlow's was chosen.

    Args:
        rows: the rows to show; None means everything timed so far.
    """
    lines = [
        f"{'convolution':<44} {'direction':<16} {'tf.nn':>9} {'winograd':>9} {'direct':>9} {'matmul':>9}  "
        f"{'chosen':<13} {'ratio':>5}"
    ]
    if rows is None:
        rows = report()
    for row in require_items("rows", rows, Timing, expected="what report() returns"):
        key = row.key
        batch = f"{key.input_shape[0]}{'?' if key.batch_assumed else ''}"
        shape = f"{batch}×{'×'.join(map(str, key.input_shape[1:]))} → {key.filter_shape[3]}"
        window = f"{key.filter_shape[0]}×{key.filter_shape[1]}/{key.strides[0]} {key.padding}"
        times = [
            f"{row.milliseconds[n]:9.3f}" if n in row.milliseconds else " " * 9
            for n in (STOCK, "winograd", "direct", MATMUL)
        ]
        epilogue = (" +bias" if key.bias else "") + (" +relu" if key.relu else "")
        lines.append(
            f"{f'{shape}, {window}{epilogue}':<44} {key.direction:<16} {' '.join(times)}  {row.chosen:<13} "
            f"{row.best_of_ours:5.2f}"
        )
    return "\n".join(lines)
