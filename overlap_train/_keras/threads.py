"""The settings of Keras and TensorFlow for each thread.

A worker thread takes over the settings of the thread for which it works: those in Keras's `global_state`,
which `custom_object_scope`, `keras.config.set_dtype_policy` and others set, and TensorFlow's defaults for
`tf.summary` (`_summary_state`). Any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import summary_ops_v2

from overlap_train._keras.names import global_state

_NAMES = (
    *("custom_objects_scope_dict", "dtype_policy", "flash_attention"),
    *("interactive_logging", "traceback_filtering"),
)


@dataclass(frozen=True, eq=False)
class ThreadSettings:
    """The settings of one thread at one time: Keras's, and TensorFlow's defaults for `tf.summary`."""

    keras: Mapping[str, Any]  # by Keras's names; None for those that have not been set
    writer: Any = None  # of `writer.as_default()`
    step: Any = None  # as a number, even if it was set as a variable
    records: Any = None  # of `tf.summary.record_if`, or the result if that is a function

    @classmethod
    def of_this_thread(cls) -> ThreadSettings:
        """Return those of the calling thread, read now: the training may go on to the next step."""
        settings = {name: _copy(global_state.get_global_attribute(name)) for name in _NAMES}
        writer = summary_ops_v2._summary_state.writer
        records = summary_ops_v2._summary_state.is_recording if writer is not None else None
        if callable(records):
            records = records()
        return cls(settings, writer, _number(tf.summary.experimental.get_step()), _number(records))

    def apply(self, last: ThreadSettings | None = None) -> None:
        """Set them on the calling thread; of `tf.summary`, only what differs from the `last` ones."""
        for name, value in self.keras.items():
            global_state.set_global_attribute(name, _copy(value))
        last = last or ThreadSettings({})
        if self.writer is not last.writer:
            summary_ops_v2._summary_state.writer = self.writer
        if self.step != last.step:
            tf.summary.experimental.set_step(self.step)
        if self.records != last.records:
            summary_ops_v2._summary_state.is_recording = self.records


def _copy(value: Any) -> Any:
    return dict(value) if isinstance(value, dict) else value


def _number(value: Any) -> Any:
    """Return the number in a tensor or variable, and everything else as it is."""
    try:
        return value.numpy().item() if hasattr(value, "numpy") else value
    except Exception:  # a tensor of a graph, or some other object
        return value
