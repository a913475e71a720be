"""Forks, in which TensorFlow may not run.

The fork of a process that has used TensorFlow has one thread, and TensorFlow's operations wait for ever for
the threads of the parent. The garbage collector would run such operations: one ends an iterator over a
generator. So a fork, such as a worker of the user's data, collects nothing of its parent's. Any thread.
"""

from __future__ import annotations

import gc
import os

from tensorflow.python.eager import context

_parent: int | None = None


def require_runtime() -> None:
    """Raise RuntimeError in a fork of a process that had used TensorFlow, which would hang here."""
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


def _hide_garbage() -> None:
    if _is_running():
        gc.freeze()  # already here: other handlers run in the child before ours


def _show_garbage() -> None:
    if _is_running():
        gc.unfreeze()


def _note_fork() -> None:
    global _parent
    if _is_running():
        _parent = os.getppid()
        gc.freeze()


os.register_at_fork(before=_hide_garbage, after_in_parent=_show_garbage, after_in_child=_note_fork)
