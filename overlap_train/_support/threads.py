"""Threads: what to do if the system allows no more, and cleaning up after one that used TensorFlow.

TensorFlow stores options and callbacks of operations for each Python thread that ran an operation, and never
frees them: 2 objects and some 0.5 KiB, too much for a search over thousands of models, as each fit starts
threads.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")
_CONTEXT = "tensorflow.python.eager.context"
_THREAD_LOCALS = ("function_call_options", "op_callbacks")


def start(thread: threading.Thread, *, advice: str = "") -> threading.Thread:
    """Start a thread and return it; raise RuntimeError if the system allows no more.

    `advice` comes before that to raise the limit, such as "ask for fewer workers, or ".
    """
    try:
        thread.start()
    except RuntimeError as error:
        raise RuntimeError(
            f"the thread {thread.name!r} could not be started ({error}); {advice}raise the limit of "
            "threads (ulimit -u, pids.max of the container)"
        ) from error
    return thread


def in_background(
    function: Callable[[], _R], name: str, *, daemon: bool = False, future: Future[_R] | None = None
) -> Future[_R]:
    """Call a function on a thread of its own, or at once if the system allows no more threads.

    Not by an executor: a program that is exiting may run its first fit, and then Python can no longer import
    that module. A KeyboardInterrupt while the thread starts does not lose a `future` of the caller's.
    """
    future = Future() if future is None else future

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
    """Decorate the main function of a thread so that TensorFlow forgets the thread at its end."""

    @functools.wraps(main)
    def run(*arguments: _P.args, **options: _P.kwargs) -> _R:
        try:
            return main(*arguments, **options)
        finally:
            _forget()

    return run


def _forget() -> None:
    """Clear the state of TensorFlow's context for this thread, which runs nothing more."""
    module = sys.modules.get(_CONTEXT)
    context = module and module.context_safe()
    thread_locals = getattr(context, "_thread_local_data", None)
    for name in _THREAD_LOCALS:
        if hasattr(thread_locals, name):
            setattr(thread_locals, name, None)
