"""What `tf.summary` writes by default: to which writer, with which step, and whether at all.

TensorFlow keeps this for each thread (`_summary_state`), so a thread that stands in for another must be told.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import summary_ops_v2

__all__ = ["SummaryDefaults", "SummaryFollower"]


@dataclass(frozen=True, eq=False)
class SummaryDefaults:
    """The defaults of one thread at one time."""

    writer: Any = None  # of `writer.as_default()`
    step: Any = None  # the number that a variable held
    records: Any = None  # of `tf.summary.record_if`, a function as what it returned

    @classmethod
    def of_this_thread(cls) -> SummaryDefaults:
        """Return those of the calling thread, read now: the training may move a step on."""
        writer = summary_ops_v2._summary_state.writer
        records = summary_ops_v2._summary_state.is_recording
        if writer is None:
            return cls(None, _number(tf.summary.experimental.get_step()), None)
        if callable(records):
            records = records()
        return cls(writer, _number(tf.summary.experimental.get_step()), _number(records))


class SummaryFollower:
    """Gives a thread the defaults of another one. Belongs to the thread that follows.

    What the thread sets itself stays, until the other one sets something else.
    """

    def __init__(self) -> None:
        self._last = SummaryDefaults()

    def follow(self, defaults: SummaryDefaults) -> None:
        """Take over what has changed since the last call."""
        last, self._last = self._last, defaults
        if defaults.writer is not last.writer:
            summary_ops_v2._summary_state.writer = defaults.writer
        if defaults.step != last.step:
            tf.summary.experimental.set_step(defaults.step)
        if defaults.records != last.records:
            summary_ops_v2._summary_state.is_recording = defaults.records


def _number(value: Any) -> Any:
    """Return the number in a tensor or variable, and everything else as it is."""
    try:
        return value.numpy().item() if hasattr(value, "numpy") else value
    except Exception:  # a tensor of a graph, or an object of others
        return value
