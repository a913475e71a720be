"""Checks of users' arguments: a bad value is refused at once, with a message that says what to do.

What counts as a flag, a choice, a text, a collection, an integer or a number is decided here alone;
the arguments of Keras are in `fit_arguments`. Scalars of NumPy are taken and returned as those of Python; a
boolean is no number. Without TensorFlow, so that every room may use it. Any thread.
"""

from __future__ import annotations

import math
import numbers
import operator
import reprlib
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeVar

import numpy as np

Auto = Literal["auto"]
T = TypeVar("T")


_shortener = reprlib.Repr()
_shortener.maxstring = _shortener.maxother = 80


def short_repr(value: object) -> str:
    """Return a short text for any value, even one that is huge or cannot be printed."""
    try:
        text = _shortener.repr(value)
    except Exception:
        return f"a {type(value).__name__} that cannot be printed"
    return text if len(text) <= 200 else f"{text[:197]}..."


def text_of(value: object) -> str:
    """Return the whole text of a value, or a short one if it cannot be printed."""
    try:
        return str(value)
    except Exception:  # of the user's class, or of a value that is nested too deep
        return short_repr(value)


def is_text(value: object, *choices: str) -> bool:
    """Whether a value is one of these texts."""
    return isinstance(value, str) and value in choices


def freeze(instance: object, **values: Any) -> None:
    """Set attributes of a frozen dataclass, from its `__post_init__`."""
    for name, value in values.items():
        object.__setattr__(instance, name, value)


def require_instance(
    name: str, value: object, kind: type | tuple[type, ...], *, optional: bool = True
) -> None:
    """Raise TypeError unless `value` is of a kind, or None if that is `optional`."""
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if not (isinstance(value, kinds) or (optional and value is None)):
        expected = " or ".join([*(kind.__name__ for kind in kinds), *["None"] * optional])
        article = "an" if expected[0] in "AEIOU" else "a"
        raise TypeError(f"{name} must be {article} {expected}; got {type(value).__name__}")


def wrong_type(name: str, value: object, expected: str) -> TypeError:
    """Return the error for a value of another type than expected."""
    return TypeError(f"{name} must be {expected}; got {short_repr(value)} of type {type(value).__name__}")


def require_flag(name: str, value: Any, *, expected: str = "True or False") -> bool:
    """Return `value` as a bool; True, False, 1, 0 and their NumPy scalars are taken, else TypeError."""
    number = scalar(value)
    if isinstance(number, int) and number in (0, 1):
        return bool(number)
    raise TypeError(f"{name} must be {expected}; got {short_repr(value)}")


def require_choice(name: str, value: Any, choices: Iterable[str]) -> Any:
    """Return `value` as a str if it is one of `choices`, or raise ValueError."""
    choices = tuple(choices)
    if not is_text(value, *choices):
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}; got {short_repr(value)}")
    return str(value)


def require_text(name: str, value: Any, *, empty: bool = False) -> str:
    """Return `value` as a str, or raise TypeError, or ValueError if it must not be empty."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string; got {short_repr(value)} of type {type(value).__name__}")
    if not value and not empty:
        raise ValueError(f"{name} must not be empty")
    return str(value)


def optional(require: Callable[..., T], name: str, value: Any, **options: Any) -> T | None:
    """Return None as it is, and any other value as `require(name, value, **options)` returns it."""
    return None if value is None else require(name, value, **options)


def require_callable(name: str, value: Any, *, optional: bool = False) -> None:
    """Raise TypeError unless `value` is a function, or None if that is `optional`."""
    if not (callable(value) or (optional and value is None)):
        raise wrong_type(name, value, "a function or None" if optional else "a function")


def require_items(
    name: str, values: Any, kind: type[T] | tuple[type[T], ...], *, expected: str
) -> tuple[T, ...]:
    """Return the items of a collection if each is of a kind, or raise TypeError."""
    try:
        if isinstance(values, (str, bytes, Mapping)):
            raise TypeError
        iterator = iter(values)
    except TypeError:
        raise wrong_type(name, values, expected) from None
    items = []
    for item in iterator:
        if not isinstance(item, kind):
            raise TypeError(f"{name} must be {expected}; got {short_repr(item)} in it")
        items.append(item)
    return tuple(items)


def require_mapping(name: str, value: Any, *, expected: str) -> Mapping[Any, Any]:
    """Return `value` if it is a mapping, or raise TypeError."""
    if not isinstance(value, Mapping):
        raise wrong_type(name, value, expected)
    return value


LARGEST = 2**63 - 1
"""The largest integer that TensorFlow counts with."""


def scalar(value: Any) -> Any:
    """Return the number of Python in a scalar of NumPy's or in a tensor, else `value`."""
    if hasattr(value, "numpy") and getattr(value, "shape", None) == ():
        value = value.numpy()
    return value.item() if isinstance(value, (np.ndarray, np.generic)) and not value.ndim else value


def is_count(value: object, largest: int = LARGEST) -> bool:
    """Whether a value from a file is an int from 0 to `largest`, and not something that acts as one."""
    return type(value) is int and 0 <= value <= largest


def require_count(
    name: str, value: Any, *, minimum: int, maximum: int = LARGEST, expected: str = "an integer"
) -> int:
    """Return `value` as an int, or raise TypeError, also for a boolean, or ValueError."""
    try:
        if isinstance(value, bool):
            raise TypeError
        count = operator.index(value)
    except (AttributeError, TypeError):  # of a tensor of floats, an array of several
        raise wrong_type(name, value, expected) from None
    if count < minimum:
        raise ValueError(f"{name} must be at least {minimum}; got {short_repr(count)}")
    if count > maximum:
        raise ValueError(f"{name} must be at most {maximum}; got {short_repr(count)}")
    return count


def require_real(
    name: str,
    value: Any,
    *,
    minimum: float | None = None,
    above: float | None = None,
    maximum: float | None = None,
    infinite: bool = False,
    expected: str = "a number",
) -> float:
    """Return `value` as a float, or raise TypeError or ValueError; NaN is always refused."""
    number = scalar(value)
    if isinstance(number, bool) or not isinstance(number, numbers.Real):
        raise wrong_type(name, value, expected)
    try:
        real = float(number)
    except OverflowError:
        real = math.inf
    if math.isnan(real) or (math.isinf(real) and not infinite):
        raise ValueError(f"{name} must be finite; got {short_repr(value)}")
    if above is not None and not real > above:
        range_ = "positive" if above == 0 else f"above {above:g}"
        raise ValueError(f"{name} must be {range_}; got {short_repr(value)}")
    if minimum is not None and not real >= minimum:
        raise ValueError(f"{name} must be at least {minimum:g}; got {short_repr(value)}")
    if maximum is not None and not real <= maximum:
        raise ValueError(f"{name} must be at most {maximum:g}; got {short_repr(value)}")
    return real


def require_seconds(
    name: str, value: Any, *, zero: bool = False, expected: str = "a number of seconds"
) -> float:
    """Return a time for which a thread can wait, as a float, or raise TypeError or ValueError."""
    minimum, above = (0.0, None) if zero else (None, 0.0)
    maximum = threading.TIMEOUT_MAX  # 292 years, beyond which Python's locks raise OverflowError
    return require_real(name, value, minimum=minimum, above=above, maximum=maximum, expected=expected)
