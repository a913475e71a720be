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
from collections.abc import Callable
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
            _shorten(error)
            # To see all frames: keras.config.disable_traceback_filtering()
            raise error.with_traceback(error.__traceback__)  # noqa: B904  the cause stays what it was

    return shortened


def _shorten(error: BaseException) -> None:
    """Shorten the tracebacks of an exception and its causes, each once.

    Not of what stands in `__context__`: the user may have been handling that before the call. A function of
    its own, so that no frame of the traceback holds the exception.
    """
    each: BaseException | None = error
    seen = set[int]()
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        # By the method: an exception that is a frozen dataclass lets nothing be assigned.
        BaseException.with_traceback(each, _without_libraries(each.__traceback__))
        each = each.__cause__


def _without_libraries(frames: types.TracebackType | None) -> types.TracebackType | None:
    """Return a traceback with the user's frames, and the last one, which says where it was raised."""
    kept = None
    for frame, line in reversed(list(traceback.walk_tb(frames))):
        file = _absolute(frame.f_code.co_filename)
        if kept is None or not file.startswith((*_HIDDEN, contextlib.__file__)):
            kept = types.TracebackType(kept, frame, frame.f_lasti, line)
    return kept


def _absolute(file: str) -> str:
    """Return the path of a file; without a working directory a relative one, such as "<stdin>"."""
    try:
        return os.path.abspath(file)
    except OSError:
        return file
