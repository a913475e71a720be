"""What convolutions have been timed on this machine, kept in the user's cache directory for other processes.

One small JSON file for each combination of conditions (`_support/caches.py`) and threads. A file that
cannot be read or written, or that holds what was never measured, is as good as none: nothing here fails. Any
thread.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tensorflow as tf

from overlap_train._support.arguments import require_flag, require_real
from overlap_train._support.caches import conditions, convolution_times
from overlap_train._support.files import read_regular, replace_content
from overlap_train.conv.shapes import DIRECTIONS, STOCK, ConvKey, Timing
from overlap_train.options.threads import available_cores

__all__ = ["load", "remove", "save"]

# A row takes some 300 bytes.
_MOST_BYTES, _MOST_ROWS = 1 << 22, 10_000
_SHORTEST_MS = 1e-6


def load() -> dict[ConvKey, Timing]:
    """Returns what is known on this machine; nothing if the file is absent, damaged or foreign."""
    path = _path()
    if path is None:
        return {}
    try:
        rows = json.loads(read_regular(path, most_bytes=_MOST_BYTES))
        found = map(_timing, rows[:_MOST_ROWS])
        return {timing.key: timing for timing in found}
    except (OSError, ValueError, LookupError, TypeError, OverflowError, RecursionError):
        return {}


def save(timings: Iterable[Timing]) -> None:
    """Adds what has been measured to what other processes have kept meanwhile."""
    path = _path()
    if path is None:
        return
    known = load() | {timing.key: timing for timing in timings}
    with contextlib.suppress(OSError):
        replace_content(path, json.dumps([dataclasses.asdict(timing) for timing in known.values()]))


def remove() -> None:
    """Forgets what is known on this machine."""
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
    """Returns what a row of the file says."""
    key = row["key"]
    convolution = ConvKey(
        _one_of(DIRECTIONS, key["direction"]),
        _one_of(("float32", "float64"), key["dtype"]),
        _sizes(key["input_shape"], 4),  # type: ignore[arg-type]
        _sizes(key["filter_shape"], 4),  # type: ignore[arg-type]
        _sizes(key["strides"], 2),  # type: ignore[arg-type]
        _one_of(("SAME", "VALID"), key["padding"]),
        require_flag("bias", key["bias"]),
        require_flag("relu", key["relu"]),
    )
    names = (STOCK, *convolution.algorithms)
    milliseconds = {
        name: require_real("milliseconds", row["milliseconds"][name], minimum=_SHORTEST_MS) for name in names
    }
    return Timing(convolution, milliseconds, _one_of(names, row["chosen"]))


def _one_of(choices: Iterable[str], value: Any) -> str:
    if value not in tuple(choices):
        raise ValueError(f"{value!r} is none of {choices}")
    return str(value)


def _sizes(values: Any, count: int) -> tuple[int, ...]:
    sizes = tuple(values)
    if len(sizes) != count or not all(type(n) is int and n > 0 and math.isfinite(n) for n in sizes):
        raise ValueError(f"{values!r} are no {count} sizes")
    return sizes
