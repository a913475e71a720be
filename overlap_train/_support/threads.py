"""The end of a thread that may have called TensorFlow.

TensorFlow keeps the options and the callbacks of operations for each Python thread that ran something, and
never frees them when the thread ends: 2 objects and some 0.5 KiB, which a search over thousands of models
would feel, since each fit has threads of its own.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

__all__ = ["leaves_nothing"]

_P = ParamSpec("_P")
_R = TypeVar("_R")
_CONTEXT = "tensorflow.python.eager.context"
_KEPT = ("function_call_options", "op_callbacks")


def leaves_nothing(main: Callable[_P, _R]) -> Callable[_P, _R]:
    """Decorates what a thread runs from its beginning to its end, so that TensorFlow forgets the thread."""

    @functools.wraps(main)
    def run(*arguments: _P.args, **options: _P.kwargs) -> _R:
        try:
            return main(*arguments, **options)
        finally:
            _forget()

    return run


def _forget() -> None:
    """Makes TensorFlow's context drop what it has of this thread, which runs nothing more."""
    module = sys.modules.get(_CONTEXT)
    context = module and module.context_safe()
    kept = getattr(context, "_thread_local_data", None)
    for name in _KEPT:
        if hasattr(kept, name):
            setattr(kept, name, None)
