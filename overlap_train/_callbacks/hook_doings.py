"""What hooks of a callback do, by their code."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterable
from typing import Any

import keras

from overlap_train._callbacks.doings import Doing
from overlap_train._callbacks.origins import Given, Known
from overlap_train._callbacks.reader import Reader

__all__ = ["doing_of"]


def doing_of(
    callback: keras.callbacks.Callback,
    hooks: Iterable[str],
    *,
    watching: tuple[Any, ...] = (),
    later: bool = False,
) -> Doing:
    """Returns the least that can be said of hooks, with the callback's settings as they are.

    Args:
        callback: as it will be called.
        hooks: names of its methods.
        watching: classes of Keras's own whose hooks at most end the training.
        later: whether `on_epoch_begin` is only asked about for epochs after the first.
    """
    reader = Reader(watching)
    # Reading asks objects of any class for attributes, lengths and hashes; what they raise is no reason to
    # fail, only that they cannot be read.
    with contextlib.suppress(Exception):
        for hook in hooks:
            method: Any = vars(callback).get(hook, getattr(callback, hook))
            number = Given.LATER if later and hook == "on_epoch_begin" else Given.DATA
            given: list[Any] = [number, Given.DATA] if "batch" in hook or "epoch" in hook else [Given.DATA]
            if isinstance(method, types.MethodType):
                method, given = method.__func__, [Known(method.__self__), *given]
            if not isinstance(method, types.FunctionType):
                return Doing.ANYTHING
            reader.run(method, given, {})
        return reader.doing
    return Doing.ANYTHING
