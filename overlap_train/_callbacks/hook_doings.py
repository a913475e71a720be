"""What hooks of a callback do, by their code."""

from __future__ import annotations

import contextlib
import inspect
import types
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import keras

from overlap_train._callbacks.doings import Doing
from overlap_train._callbacks.facts import Fact
from overlap_train._callbacks.given import Given, Known
from overlap_train._callbacks.reader import Reader
from overlap_train._inspection.code import Unclear
from overlap_train._inspection.lookup import variables_of

__all__ = ["Reading", "read_hooks"]


@dataclass(frozen=True)
class Reading:
    """What has been found in the code of hooks.

    Attributes:
        doing: the least that can be said of them.
        users: whether some of it is the user's, and not a library's alone. The user's other code, such as a
            generator, may look at what it keeps.
        sets: names of the attributes that it sets.
        relied_on: names of the attributes and variables whose present values have been relied upon.
        facts: what has been found in objects and variables.
    """

    doing: Doing
    users: bool
    sets: frozenset[str] = frozenset()
    relied_on: frozenset[str] = frozenset()
    facts: tuple[Fact, ...] = ()


def read_hooks(
    callback: keras.callbacks.Callback,
    hooks: Collection[str],
    *,
    watching: tuple[Any, ...] = (),
    later: bool = False,
    unfixed: frozenset[str] = frozenset(),
) -> Reading:
    """Returns what the code of hooks does, with the callback's settings as they are.

    Args:
        callback: as it will be called.
        hooks: names of its methods.
        watching: classes of Keras's own whose hooks at most end the training.
        later: whether `on_epoch_begin` is only asked about for epochs after the first.
        unfixed: names of attributes and variables that may be set before.
    """
    unreadable = Reading(Doing.ANYTHING, users=True)
    if inspect.getattr_static(type(callback), "__getattribute__") is not object.__getattribute__:
        return unreadable
    # Reading asks objects of any class for attributes, lengths and hashes; what they raise is no reason to
    # fail, only that they cannot be read.
    with contextlib.suppress(Exception):
        while True:
            reader = Reader(watching, unfixed)
            for hook in hooks:
                _read(reader, callback, hook, later=later)
            # What the code itself sets, on whatever object, is not relied upon to stay.
            found = unfixed | (reader.sets & reader.relied_on)
            if found == unfixed:
                doing = max(reader.doing, Doing.APART if reader.fails else Doing.NOTHING)
                names = frozenset(reader.sets), frozenset(reader.relied_on)
                return Reading(doing, reader.users, *names, reader.facts)
            unfixed = found
    return unreadable


def _read(reader: Reader, callback: keras.callbacks.Callback, hook: str, *, later: bool) -> None:
    """Reads a hook.

    Raises:
        Unclear: it cannot be read.
    """
    method: Any = variables_of(callback).get(hook) or getattr(callback, hook)
    number = Given.LATER if later and hook == "on_epoch_begin" else Given.LOGS
    given: list[Any] = [number, Given.LOGS] if "batch" in hook or "epoch" in hook else [Given.LOGS]
    if isinstance(method, types.MethodType):
        method, given = method.__func__, [Known(method.__self__), *given]
    if not isinstance(method, types.FunctionType):
        raise Unclear
    reader.run(method, given, {})
