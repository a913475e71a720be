"""The user's lines: tracebacks show only these, and warnings name them.

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

P = ParamSpec("P")
R = TypeVar("R")

_PACKAGE = sys.modules[__name__.split(".")[0]]
_HIDDEN = tuple(
    os.path.dirname(os.path.abspath(str(module.__file__))) + os.sep for module in (_PACKAGE, keras, tf)
)


def filtered(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function so that its exceptions come without the frames of libraries.

    Unlike Keras's `filter_traceback` it keeps the causes: that of a `ValidationWorkerError` is what failed.
    """

    @functools.wraps(function)
    def shortened(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            if not keras.config.is_traceback_filtering_enabled():
                raise
            # To see all frames: keras.config.disable_traceback_filtering()
            raise error.with_traceback(_without_libraries(error.__traceback__))  # noqa: B904  keeps its cause

    return shortened


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn of the user's innermost line, or of the outermost line if none is the user's."""
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
    """Whether a frame is one of this package, Keras or TensorFlow."""
    file = frame.f_code.co_filename
    with contextlib.suppress(OSError):  # without a working directory, for a relative path such as "<stdin>"
        file = os.path.abspath(file)
    return file.startswith((*_HIDDEN, contextlib.__file__))


def _without_libraries(frames: types.TracebackType | None) -> types.TracebackType | None:
    """Return a traceback of the user's frames, and of the last one, where the exception was raised."""
    rest = None
    for frame, line in reversed(list(traceback.walk_tb(frames))):
        if rest is None or not _is_hidden(frame):
            rest = types.TracebackType(rest, frame, frame.f_lasti, line)
    return rest
