"""What Keras and TensorFlow keep for each thread, and whether they can run at all: not in every fork.

A thread that stands in for another takes over its settings, which Keras keeps in `global_state`, where
`custom_object_scope`, `keras.config.set_dtype_policy` and others write, and TensorFlow's defaults for
`tf.summary` (`_summary_state`).

The fork of a process that has used TensorFlow has one thread, and TensorFlow's operations wait for ever for
the threads of the parent's runtime. The garbage collector would run some: the end of an iterator over a
generator is one. So a fork, such as a worker of the user's data, collects nothing that was its parent's. Any
thread.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.ops import summary_ops_v2

from overlap_train._keras.names import global_state

__all__ = ["KerasSettings", "SummaryDefaults", "SummaryFollower", "require_runtime"]


_NAMES = (
    *("custom_objects_scope_dict", "dtype_policy", "flash_attention"),
    *("interactive_logging", "traceback_filtering"),
)


@dataclass(frozen=True)
class KerasSettings:
    """The settings of one thread at one time, by Keras's names; None for those that have not been set."""

    values: Mapping[str, Any]

    @classmethod
    def of_this_thread(cls) -> KerasSettings:
        """Return those of the calling thread."""
        return cls({name: _copied(global_state.get_global_attribute(name)) for name in _NAMES})

    def apply(self) -> None:
        """Make them hold on the calling thread."""
        for name, value in self.values.items():
            global_state.set_global_attribute(name, _copied(value))


def _copied(value: Any) -> Any:
    return dict(value) if isinstance(value, dict) else value


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


_parent: int | None = None
_forking: set[int] = set()  # threads that have found the collector enabled, or paused by another one


def require_runtime() -> None:
    """Raise RuntimeError in a fork of a process that had used TensorFlow, which would wait here for ever."""
    if _parent is not None:
        raise RuntimeError(
            f"This process was forked from process {_parent} after that had used TensorFlow, whose threads "
            "do not come along: anything that TensorFlow runs here would wait for them for ever. Start "
            'processes by multiprocessing.get_context("spawn"), or fork before TensorFlow is used.'
        )


def _is_running() -> bool:
    """Whether the runtime has been started (`context.context_safe`, `_initialized`)."""
    running = context.context_safe()
    return running is not None and running._initialized


def _pause_collection() -> None:
    if _is_running() and (gc.isenabled() or _forking):
        _forking.add(threading.get_ident())
        gc.disable()


def _resume_collection() -> None:
    if threading.get_ident() in _forking:
        _forking.discard(threading.get_ident())
        if not _forking:
            gc.enable()


def _note_fork() -> None:
    global _parent
    if _is_running():
        _parent = os.getppid()
        gc.freeze()
    if _forking:
        _forking.clear()
        gc.enable()


os.register_at_fork(before=_pause_collection, after_in_parent=_resume_collection, after_in_child=_note_fork)
