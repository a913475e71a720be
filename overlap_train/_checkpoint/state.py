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
    """Everything that decides how a training goes on.

    Attributes:
        epoch: the next epoch to train, counted from 0.
        step: training steps made so far.
        arrays: named arrays of any shape, 0-d and empty ones too, and of any dtype without Python objects
            or fields; those of ml_dtypes, such as bfloat16, included.
        meta: named values of None, bool, int of any size, float with NaN and infinities, str, and lists and
            dicts of these, dicts with str keys.
        fingerprint: what the state belongs to, by name, as `fingerprints.fingerprint` describes it.
    """

    epoch: int
    step: int
    arrays: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)
    fingerprint: Mapping[str, str] = field(default_factory=dict)


def shortened(value: object) -> str:
    """Returns a value as a message shows it, whatever a file holds: text of bounded length."""
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
