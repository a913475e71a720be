"""What a checkpoint holds, and the check that it belongs to the training that wants it."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import numpy as np
import numpy.typing as npt

from overlap_train._support.arguments import plain_text, require_each, shown
from overlap_train.errors import CheckpointMismatchError

__all__ = ["CheckpointState", "layout", "shortened"]

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
        fingerprint: what the state belongs to, such as `{"model": layout(model.variables)}`. A text of
            several lines is compared line by line.
    """

    epoch: int
    step: int
    arrays: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)
    fingerprint: Mapping[str, str] = field(default_factory=dict)

    def check(self, fingerprint: Mapping[str, str], *, source: str = "The checkpoint") -> None:
        """Makes sure that the state belongs to a training.

        Args:
            fingerprint: that of the training that wants to resume.
            source: what the message calls the checkpoint, such as its path.

        Raises:
            CheckpointMismatchError: a part differs; the message names each and says what to do.
        """
        parts = {**self.fingerprint, **fingerprint}
        different = [part for part in parts if self.fingerprint.get(part) != fingerprint.get(part)]
        if not different:
            return
        reasons = "; ".join(
            f"{part}: {_difference(self.fingerprint.get(part), fingerprint.get(part))}" for part in different
        )
        names = " and ".join(different)
        raise CheckpointMismatchError(
            f"{source} was written by another training. What differs: {reasons}. Resume with the same "
            f"{names}, or give another directory to start afresh."
        )


def layout(variables: Iterable[Any]) -> str:
    """Describes variables for a fingerprint: one line for each, with its name, shape and dtype.

    The numbers that Keras appends to make names unique are left out, because they count what the process
    has built before: the first `dense` of a script is `dense_3` in a notebook's second run.

    Args:
        variables: Keras variables, in the order in which their values are stored.
    """
    return "\n".join(require_each("variables", variables, _line, expected="a collection of variables"))


def _line(argument: str, variable: Any) -> str:
    if not all(hasattr(variable, attribute) for attribute in ("path", "shape", "dtype")):
        raise TypeError(f"{argument} must be Keras variables; got {shown(variable)}")
    name = re.sub(r"_\d+(?=[_/]|$)", "", variable.path)  # also inside: adam/dense_1_kernel_momentum
    shape = "x".join(str(size) for size in variable.shape) or "scalar"
    return f"{name} {shape} {np.dtype(variable.dtype) if variable.dtype != 'string' else 'string'}"


def _difference(stored: str | None, wanted: str | None) -> str:
    """Returns the first line in which two parts of a fingerprint differ, in words."""
    if stored is None or wanted is None:
        return "the checkpoint has none" if stored is None else "this training has none"
    lines = zip_longest(stored.splitlines(), wanted.splitlines(), fillvalue="nothing")
    number, (first, second) = next(
        (n, pair) for n, pair in enumerate([*lines, (stored, wanted)], start=1) if pair[0] != pair[1]
    )
    where = f"line {number}, " if "\n" in stored + wanted else ""
    return f"{where}the checkpoint has {shortened(first)}, this training has {shortened(second)}"


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
