"""Tracebacks show only the user's lines; what is warned of in Keras's stead names Keras's.

Tracebacks are as short as Keras's, and obey `keras.config.disable_traceback_filtering()`. Any thread.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
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


def warn_as_keras(message: str, function: Callable[..., object], mark: str) -> None:
    """Give a warning as Keras does where a function of its own has a text: so filters match, once a place."""
    function = inspect.unwrap(function)
    variables = function.__globals__
    warnings.warn_explicit(
        message,
        UserWarning,
        variables["__file__"],
        _line(function, mark),
        module=variables["__name__"],
        registry=variables.setdefault("__warningregistry__", {}),
    )


@functools.cache
def _line(function: Callable[..., object], mark: str) -> int:
    """Return the line on which a function's call that warns begins, for a text in that call."""
    first: int = function.__code__.co_firstlineno
    with contextlib.suppress(OSError):  # without sources
        source = inspect.getsource(function)
        call = source.rfind("warn", 0, source.index(mark) + len(mark)) if mark in source else 0
        return first + source.count("\n", 0, call)
    return first


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
