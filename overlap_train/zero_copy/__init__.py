"""Memory that NumPy, TensorFlow and a GPU share without a copy.

`as_tensor` and `as_array` share existing memory. `MappedBuffer` owns memory that a producer and a consumer
use in turns. `ResidentLimit` bounds how much of a memory-mapped file stays resident while it is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlap_train._support.imports import lazy_names

if TYPE_CHECKING:
    from overlap_train.zero_copy.buffer import Crossover, MappedBuffer, measure_crossover
    from overlap_train.zero_copy.pages import ResidentLimit
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
    "ResidentLimit",
    "Statistics",
    "as_array",
    "as_tensor",
    "empty",
    "explain",
    "measure_crossover",
    "statistics",
]

_HOMES = {
    **dict.fromkeys(
        ("Choice", "Mode", "Statistics", "as_array", "as_tensor", "empty", "explain", "statistics"), "tensors"
    ),
    **dict.fromkeys(("Crossover", "MappedBuffer", "measure_crossover"), "buffer"),
    "ResidentLimit": "pages",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
