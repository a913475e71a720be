"""Threads: where the system allows no more of them, and the end of one that may have called TensorFlow.

TensorFlow keeps the options and the callbacks of operations for each Python thread that ran something, and
never frees them when the thread ends: 2 objects and some 0.5 KiB, which a search over thousands of models
would feel, since each fit has threads of its own.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import ParamSpec, TypeVar

__all__ = ["in_background", "leaves_nothing", "start"]

_P = ParamSpec("_P")
_R = TypeVar("_R")
_CONTEXT = "tensorflow.python.eager.context"
_KEPT = ("function_call_options", "op_callbacks")


def start(thread: threading.Thread) -> threading.Thread:
    """Start a thread and return it; raise RuntimeError where the system allows no more."""
    try:
        thread.start()
    except RuntimeError as error:
        raise RuntimeError(
            f"the thread {thread.name!r} could not be started ({error}); raise the limit of threads "
            "(ulimit -u, pids.max of the container)"
        ) from error
    return thread


def in_background(function: Callable[[], _R], name: str, *, daemon: bool = False) -> Future[_R]:
    """Call a function on a thread that ends with it, or at once where the system starts no more threads.

    An executor would do as well, but not in the first fit of a program that is exiting: then Python can no
    longer import its module.
    """
    future: Future[_R] = Future()

    def run() -> None:
        try:
            result = function()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    try:
        threading.Thread(target=leaves_nothing(run), name=name, daemon=daemon).start()
    except RuntimeError:  # can't start new thread
        run()
    return future


def leaves_nothing(main: Callable[_P, _R]) -> Callable[_P, _R]:
    """Decorate what a thread runs from its beginning to its end, so that TensorFlow forgets the thread."""

    @functools.wraps(main)
    def run(*arguments: _P.args, **options: _P.kwargs) -> _R:
        try:
            return main(*arguments, **options)
        finally:
            _forget()

    return run


def _forget() -> None:
    """Make TensorFlow's context drop what it has of this thread, which runs nothing more."""
    module = sys.modules.get(_CONTEXT)
    context = module and module.context_safe()
    kept = getattr(context, "_thread_local_data", None)
    for name in _KEPT:
        if hasattr(kept, name):
            setattr(kept, name, None)
