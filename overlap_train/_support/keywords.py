"""Refuses arguments that a call does not have, and says which one may have been meant. Any thread.

Python names the argument alone. Options are many and their names are long, and some that belong to a policy
are looked for at the trainer.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import ParamSpec, TypeVar

__all__ = ["checks_names", "knows_names"]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


def checks_names(name: str, at: str = "{}", **within: type) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator: a call with an unknown argument then raises a TypeError that names the one meant.

    Arguments of the classes in `within` are known too; `at` is the call that takes them.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        parameters = [p for n, p in inspect.signature(function).parameters.items() if n != "self"]
        known = [p.name for p in parameters]
        by_name = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
        unnamed = len(known) - len(by_name)
        has_self = "self" in inspect.signature(function).parameters

        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            for given in kwargs:
                if given not in known:
                    raise TypeError(f"{name} has no argument {given!r}; {_meant(given, known, at, within)}")
            more = len(args) - has_self - unnamed
            if more > 0:
                raise TypeError(f"{name} takes {_list(by_name)} by name; got {more} without one")
            return function(*args, **kwargs)

        return checked

    return decorate


def knows_names(kind: type[T]) -> type[T]:
    """Decorate a class: its constructor raises a TypeError that helps, for arguments that it has not."""
    setattr(kind, "__init__", checks_names(kind.__name__)(vars(kind)["__init__"]))  # noqa: B010
    return kind


def _meant(given: str, known: list[str], at: str, within: Mapping[str, type]) -> str:
    """Return what may have been meant by the name of an argument that there is not."""
    for argument, kind in within.items():
        if given == argument:
            return f"pass {at.format(f'{argument}={kind.__name__}(...)')}"
        if given in inspect.signature(kind).parameters:
            return f"{kind.__name__} has: pass {at.format(f'{argument}={kind.__name__}({given}=...)')}"
    close = difflib.get_close_matches(given, known)
    if close:
        return f"did you mean {' or '.join(map(repr, close))}?"
    return f"it takes {_list(known)}"


def _list(names: list[str]) -> str:
    return ", ".join(names) if len(names) < 2 else f"{', '.join(names[:-1])} and {names[-1]}"
