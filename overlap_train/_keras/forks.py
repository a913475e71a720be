"""Whether TensorFlow can still run in this process: not in the fork of one that has used it.

A fork has one thread, and TensorFlow's operations wait for ever for the threads of the parent's runtime. The
garbage collector would run some: the end of an iterator over a generator is one. So a fork, such as a worker
of the user's data, collects nothing that was its parent's. Any thread.
"""

from __future__ import annotations

import gc
import os
import threading

from tensorflow.python.eager import context

__all__ = ["require_runtime"]

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
