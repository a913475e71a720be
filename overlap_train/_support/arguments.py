"""Checks of what a user passes: each bad value is refused where it is given, saying what to do.

The one owner of what counts as a flag, a choice, a text, a path and a collection; `numbers` owns the numbers
and `fit_arguments` what Keras calls by a name. Scalars of NumPy are taken as those of Python, and returned as
such. Free of TensorFlow, so that every room may use it. Any thread.
"""

from __future__ import annotations

import os
import reprlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

Auto = Literal["auto"]
T = TypeVar("T")

__all__ = [
    "Auto",
    "auto_or",
    "freeze",
    "is_text",
    "plain_text",
    "require_callable",
    "require_choice",
    "require_each",
    "require_flag",
    "require_instance",
    "require_items",
    "require_mapping",
    "require_path",
    "require_text",
    "shown",
    "text_of",
]


_shortener = reprlib.Repr()
_shortener.maxstring = _shortener.maxother = 80


def shown(value: object) -> str:
    """Return a short text for any value, also one that is huge or cannot be printed."""
    try:
        text = _shortener.repr(value)
    except Exception:
        return f"a {type(value).__name__} that cannot be printed"
    return text if len(text) <= 200 else f"{text[:197]}..."


def text_of(value: object) -> str:
    """Return what a value is printed as, whole, or a short text for one that cannot be printed."""
    try:
        return str(value)
    except Exception:  # of an object of the user's, or of one that is nested too deep
        return shown(value)


def plain_text(value: str) -> str:
    """Return a text as a str; a class of the user's may compare and print it otherwise."""
    return str.__str__(value)


def is_text(value: object, *choices: str) -> bool:
    """Whether a value is one of these texts."""
    return isinstance(value, str) and plain_text(value) in choices


def freeze(instance: object, **values: Any) -> None:
    """Set attributes of a frozen dataclass, from its `__post_init__`."""
    for name, value in values.items():
        object.__setattr__(instance, name, value)


def require_instance(
    name: str, value: object, kind: type | tuple[type, ...], *, optional: bool = True
) -> None:
    """Raise TypeError unless `value` is of a kind, or None where that is `optional`."""
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if not (isinstance(value, kinds) or (optional and value is None)):
        expected = [each.__name__ for each in kinds] + ["None"] * optional
        one_of = " or ".join(expected)
        article = "an" if one_of[0] in "AEIOU" else "a"
        raise TypeError(f"{name} must be {article} {one_of}; got {type(value).__name__}")


def require_flag(name: str, value: Any, *, expected: str = "True or False") -> bool:
    """Return `value` as a bool; True, False, 1, 0 and their NumPy scalars are taken, else TypeError."""
    taken = isinstance(value, (bool, int, np.bool_, np.integer))
    if isinstance(value, np.ndarray):
        taken = value.ndim == 0 and value.dtype.kind in "biu"
    try:
        if taken and value in (0, 1):
            return bool(value)
    except Exception:  # of a class of the user's that acts as a number
        pass
    raise TypeError(f"{name} must be {expected}; got {shown(value)}")


def require_choice(name: str, value: Any, choices: Iterable[str]) -> Any:
    """Return `value` as a str if it is one of `choices`, or raise ValueError."""
    known = tuple(choices)
    if not is_text(value, *known):
        raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}; got {shown(value)}")
    return plain_text(value)


def auto_or(name: str, value: Any, require: Callable[..., T], *, expected: str, **options: Any) -> T | Auto:
    """Return "auto" as it is, and what is no text as `require(name, value, **options)` does."""
    if not isinstance(value, str):
        return require(name, value, expected=expected, **options)
    if not is_text(value, "auto"):
        raise ValueError(f"{name} must be {expected}; got {shown(value)}")
    return "auto"


def require_text(name: str, value: Any, *, empty: bool = False) -> str:
    """Return `value` as a str, or raise TypeError, or ValueError where it must not be empty."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string; got {shown(value)} of type {type(value).__name__}")
    text = plain_text(value)
    if not text and not empty:
        raise ValueError(f"{name} must not be empty")
    return text


def require_path(name: str, value: Any) -> Path:
    """Return a path that the system can take, or raise TypeError or ValueError."""
    try:
        text = os.fspath(value)
    except Exception:
        text = None
    if not isinstance(text, str):
        raise TypeError(f"{name} must be a path; got {shown(value)} of type {type(value).__name__}")
    text = plain_text(text)
    if not text:
        raise ValueError(f"{name} must be a path; got an empty one")
    if "\0" in text:
        raise ValueError(f"{name} must be a path, without a null character; got {shown(text)}")
    try:
        size, most = len(os.fsencode(text)), os.pathconf("/", "PC_PATH_MAX") - 1
    except UnicodeEncodeError:
        raise ValueError(f"{name} must be a path that the system can write; got {shown(text)}") from None
    if size > most > 0:
        raise ValueError(f"{name} must be a path of at most {most} bytes; got {shown(text)} of {size}")
    return Path(text)


def require_callable(name: str, value: Any, *, optional: bool = False) -> None:
    """Raise TypeError unless `value` is a function, or None where that is `optional`."""
    if not (callable(value) or (optional and value is None)):
        expected = "a function or None" if optional else "a function"
        raise TypeError(f"{name} must be {expected}; got {shown(value)} of type {type(value).__name__}")


def require_each(name: str, values: Any, require: Callable[[str, Any], T], *, expected: str) -> tuple[T, ...]:
    """Return the items of a collection, each as `require(name, item)` returns it."""
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        raise TypeError(f"{name} must be {expected}; got {shown(values)} of type {type(values).__name__}")
    try:
        items = tuple(values)
    except Exception as error:
        raise TypeError(f"{name} must be {expected}; got {shown(values)}, which raises {error!r}") from error
    return tuple(require(name, item) for item in items)


def require_items(name: str, values: Any, kind: type[T], *, expected: str) -> tuple[T, ...]:
    """Return the items of a collection if each is of a kind, or raise TypeError."""

    def of_kind(name: str, item: Any) -> T:
        if not isinstance(item, kind):
            raise TypeError(f"{name} must be {expected}; got {shown(item)} in it")
        return item

    return require_each(name, values, of_kind, expected=expected)


def require_mapping(name: str, value: Any, *, expected: str) -> Mapping[Any, Any]:
    """Return `value` if it is a mapping, or raise TypeError."""
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} must be {expected}; got {shown(value)} of type {type(value).__name__}")
    return value
