"""Memory that NumPy, TensorFlow and a GPU share without a copy.

`as_tensor` and `as_array` share existing memory. `MappedBuffer` owns memory that a producer and a consumer
use in turns. `ResidentLimit` bounds how much of a memory-mapped file stays resident while it is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlap_train._support.imports import lazy_names

if TYPE_CHECKING:
    from overlap_train.zero_copy.buffer import Crossover, MappedBuffer, Turn, measure_crossover
    from overlap_train.zero_copy.cuda import shared_pool
    from overlap_train.zero_copy.pages import ResidentLimit, drop_pages
    from overlap_train.zero_copy.pool import Pool, PoolStatistics
    from overlap_train.zero_copy.tensors import (
        Choice,
        Mode,
        Statistics,
        as_array,
        as_tensor,
        empty,
        explain,
        statistics,
    )

__all__ = [
    "Choice",
    "Crossover",
    "MappedBuffer",
    "Mode",
    "Pool",
    "PoolStatistics",
    "ResidentLimit",
    "Statistics",
    "Turn",
    "as_array",
    "as_tensor",
    "drop_pages",
    "empty",
    "explain",
    "measure_crossover",
    "shared_pool",
    "statistics",
]

_HOMES = {
    **dict.fromkeys(
        ("Choice", "Mode", "Statistics", "as_array", "as_tensor", "empty", "explain", "statistics"), "tensors"
    ),
    **dict.fromkeys(("Crossover", "MappedBuffer", "Turn", "measure_crossover"), "buffer"),
    **dict.fromkeys(("Pool", "PoolStatistics"), "pool"),
    **dict.fromkeys(("ResidentLimit", "drop_pages"), "pages"),
    "shared_pool": "cuda",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
