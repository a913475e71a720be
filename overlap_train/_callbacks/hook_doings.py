"""What hooks of a callback do, by their code."""

from __future__ import annotations

import contextlib
import inspect
import types
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import keras

from overlap_train._callbacks.doings import Doing
from overlap_train._callbacks.origins import Given, Known
from overlap_train._callbacks.reader import Reader

__all__ = ["Reading", "doing_of", "read_hooks"]


@dataclass(frozen=True)
class Reading:
    """What has been found in the code of hooks.

    Attributes:
        doing: the least that can be said of them.
        users: whether some of it is the user's, and not a library's alone. The user's other code, such as a
            generator, may look at what it keeps.
    """

    doing: Doing
    users: bool


def doing_of(
    callback: keras.callbacks.Callback, hooks: Iterable[str], *, watching: tuple[Any, ...] = ()
) -> Doing:
    """Returns the least that can be said of hooks; see `read_hooks`."""
    return read_hooks(callback, hooks, watching=watching).doing


def read_hooks(
    callback: keras.callbacks.Callback,
    hooks: Iterable[str],
    *,
    watching: tuple[Any, ...] = (),
    later: bool = False,
) -> Reading:
    """Returns what the code of hooks does, with the callback's settings as they are.

    Args:
        callback: as it will be called.
        hooks: names of its methods.
        watching: classes of Keras's own whose hooks at most end the training.
        later: whether `on_epoch_begin` is only asked about for epochs after the first.
    """
    reader = Reader(watching)
    unreadable = Reading(Doing.ANYTHING, users=True)
    if inspect.getattr_static(type(callback), "__getattribute__") is not object.__getattribute__:
        return unreadable
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
                return unreadable
            reader.run(method, given, {})
        return Reading(reader.doing, reader.users)
    return unreadable
