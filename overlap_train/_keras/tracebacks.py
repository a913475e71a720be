"""Tracebacks as short as Keras's: what `fit` raises shows the user's lines, and not what lies between them.

Obeys `keras.config.disable_traceback_filtering()`. Any thread.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import traceback
import types
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

import keras
import tensorflow as tf

__all__ = ["filtered"]

P = ParamSpec("P")
R = TypeVar("R")

_PACKAGE = sys.modules[__name__.split(".")[0]]
_HIDDEN = tuple(
    os.path.dirname(os.path.abspath(str(module.__file__))) + os.sep for module in (_PACKAGE, keras, tf)
)


def filtered(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function: what it raises, and the causes of that, come without the frames of libraries.

    Of Keras's own methods it is `filter_traceback` that does this. It takes the causes away; they stay here,
    since the cause of a `ValidationWorkerError` is what failed.
    """

    @functools.wraps(function)
    def shortened(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            if not keras.config.is_traceback_filtering_enabled():
                raise
            for each in _chain(error):
                each.__traceback__ = _without_libraries(each.__traceback__)
            # To see all frames: keras.config.disable_traceback_filtering()
            raise error.with_traceback(error.__traceback__)  # noqa: B904  the cause stays what it was

    return shortened


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and those behind it, each once."""
    waiting, seen = [error], set[int]()
    while waiting:
        each = waiting.pop()
        if id(each) not in seen:
            seen.add(id(each))
            waiting += [other for other in (each.__cause__, each.__context__) if other is not None]
            yield each


def _without_libraries(frames: types.TracebackType | None) -> types.TracebackType | None:
    """Return a traceback with the user's frames, and the last one, which says where it was raised."""
    kept = None
    for frame, line in reversed(list(traceback.walk_tb(frames))):
        file = os.path.abspath(frame.f_code.co_filename)
        if kept is None or not file.startswith((*_HIDDEN, contextlib.__file__)):
            kept = types.TracebackType(kept, frame, frame.f_lasti, line)
    return kept
