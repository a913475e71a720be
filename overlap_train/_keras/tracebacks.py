"""The user's lines: tracebacks show them, and not what lies between them, and warnings are given of them.

Tracebacks are as short as Keras's, and obey `keras.config.disable_traceback_filtering()`. Any thread.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import traceback
import types
import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import keras
import tensorflow as tf

__all__ = ["filtered", "warn_user"]

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


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn of the user's line that called, or of the outermost one where no user's did."""
    frame = sys._getframe(1)
    while _is_hidden(frame) and frame.f_back is not None:
        frame = frame.f_back
    variables = frame.f_globals
    warnings.warn_explicit(
        message,
        category,
        frame.f_code.co_filename,
        frame.f_lineno,
        module=variables.get("__name__"),
        registry=variables.setdefault("__warningregistry__", {}),
    )


def _is_hidden(frame: types.FrameType) -> bool:
    """Whether a frame is one of a library between the user and what has been called."""
    return _absolute(frame.f_code.co_filename).startswith((*_HIDDEN, contextlib.__file__))


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
        if kept is None or not _is_hidden(frame):
            kept = types.TracebackType(kept, frame, frame.f_lasti, line)
    return kept


def _absolute(file: str) -> str:
    """Return the path of a file; without a working directory a relative one, such as "<stdin>"."""
    try:
        return os.path.abspath(file)
    except OSError:
        return file
