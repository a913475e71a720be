"""algorithm="auto": times our algorithms and TensorFlow's once for each shape, and takes the fastest.

What one process has timed serves all others on the machine (`timing_cache.py`).

The choice is made while a function is traced, outside its graph, so the graph holds the chosen operation
alone: where TensorFlow's wins, it is exactly what tf.nn.conv2d would have been, with all of grappler's
fusions.

Shared state: `_timings` and `_kept`, under `_lock`, so that one shape is timed once and nothing else is timed
meanwhile.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable

import tensorflow as tf

from overlap_train.conv import timing_cache
from overlap_train.conv.shapes import STOCK, ConvKey, Timing

__all__ = ["choose", "clear_timings", "forget_process", "only_known", "operands", "timings"]

# Rounds at least, where they fit the budget; short convolutions get more, until `_ENOUGH_S` have gone by.
_ROUNDS, _MOST_ROUNDS = 9, 27
_BUDGET_S, _ENOUGH_S = 0.4, 0.1
# Ours must win by more than a noisy clock could pretend.
_MARGIN = 0.95


_timings: dict[ConvKey, Timing] = {}
_kept: dict[ConvKey, Timing] | None = None  # of other processes; None as long as nobody has asked
_lock = threading.Lock()
_local = threading.local()


def timings() -> tuple[Timing, ...]:
    """Everything timed so far in this process, in order. Any thread."""
    with _lock:
        return tuple(_timings.values())


def clear_timings() -> None:
    """Forgets all choices, also those kept on disk; shapes are timed again when they are traced next."""
    timing_cache.remove()
    forget_process()


def forget_process() -> None:
    """Forgets what this process has timed or read; what is kept on disk is read again."""
    global _kept
    with _lock:
        _timings.clear()
        _kept = None


def only_known(missing: set[ConvKey]) -> contextlib.ExitStack:
    """Let this thread time nothing: a shape that was never timed is noted and takes `ConvKey.untimed`."""
    before = getattr(_local, "missing", None)
    _local.missing = missing
    undo = contextlib.ExitStack()
    undo.callback(setattr, _local, "missing", before)
    return undo


def choose(key: ConvKey, compute: Callable[[str], Callable[..., tf.Tensor]]) -> str:
    """The algorithm for one shape, timed now if it never was. Any thread; also while a function is traced."""
    if 0 in key.input_shape or 0 in key.output_shape:
        # Nothing to time; and TensorFlow's oneDNN kernel gives an empty batch a wrong number of channels.
        return "direct"
    missing: set[ConvKey] | None = getattr(_local, "missing", None)
    with _lock, tf.init_scope():
        timing = _known(key)
        if timing is not None:
            return timing.chosen
        if missing is not None:
            missing.add(key)
            return key.untimed
        if not tf.executing_eagerly():  # a graph of TensorFlow 1: nothing can be run now
            return key.algorithms[0]
        timing = _timings[key] = _measure(key, compute)
        timing_cache.save([timing])
        return timing.chosen


def _known(key: ConvKey) -> Timing | None:
    """Returns what this process or another has measured of a convolution. Holding the lock."""
    global _kept
    if key not in _timings:
        if _kept is None:
            _kept = timing_cache.load()
        if key in _kept:
            _timings[key] = _kept[key]
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
    """Time all algorithms in rounds, compiled, as a training step is.

    So a disturbance meets all of them. Each round has an order of its own, so that none has always the same
    one's caches.
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
    best = min(key.algorithms, key=lambda name: milliseconds[name])
    chosen = best if milliseconds[best] < _MARGIN * milliseconds[STOCK] else STOCK
    return Timing(key, milliseconds, chosen)


def _wait_for(result: tf.Tensor) -> None:
    """On a CPU a result is there when the call returns, unless asked otherwise; a copy of it takes time."""
    if "CPU" not in result.device or not tf.config.experimental.get_synchronous_execution():
        result.numpy()
