"""Whether TensorFlow can still run in this process: not in the fork of one that has used it.

A fork has one thread, and TensorFlow's operations wait for ever for the threads of the parent's runtime. Any
thread.
"""

from __future__ import annotations

import os

from tensorflow.python.eager import context

__all__ = ["require_runtime"]

_parent: int | None = None


def require_runtime() -> None:
    """Refuses to run TensorFlow where it would wait for ever.

    Raises:
        RuntimeError: this process was forked from one that had used TensorFlow by then.
    """
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


def _note_fork() -> None:
    global _parent
    if _is_running():
        _parent = os.getppid()


os.register_at_fork(after_in_child=_note_fork)
