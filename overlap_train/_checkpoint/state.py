"""What a checkpoint holds."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from overlap_train._support.arguments import plain_text

__all__ = ["CheckpointState", "shortened"]

_LONGEST_SHOWN = 160


@dataclass(frozen=True, eq=False)
class CheckpointState:
    """Everything that decides how a training goes on."""

    epoch: int  # the next one, counted from 0
    step: int  # training steps made so far
    # Of any shape and dtype without Python objects or fields; those of ml_dtypes, such as bfloat16, included.
    arrays: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    # Of JSON, with integers of any size, NaN and infinities.
    meta: Mapping[str, Any] = field(default_factory=dict)
    fingerprint: Mapping[str, str] = field(default_factory=dict)


def shortened(value: object) -> str:
    """Return a value as a message shows it, whatever a file holds: text of bounded length."""
    if isinstance(value, str):
        text = plain_text(value)
        return repr(text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 3] + "...")
    if isinstance(value, int) and value.bit_length() > 1024:
        return f"an integer of {value.bit_length()} bits"
    try:
        text = reprlib.repr(value)
    except ValueError:  # of an integer in it that has more digits than Python writes out
        return f"a {type(value).__name__} that cannot be printed"
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 3] + "..."
