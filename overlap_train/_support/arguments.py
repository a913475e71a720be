"""Checks of what a user passes: each bad value is refused where it is given, saying what to do.

The one owner of what counts as an integer, a number, a flag and a choice. Scalars of NumPy are taken as
those of Python, and returned as such; a boolean is no number. Free of TensorFlow, so that every room may use
it. Any thread.
"""

from __future__ import annotations

import math
import numbers
import operator
import os
import reprlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

Auto = Literal["auto"]
Verbosity = Literal["auto", 0, 1, 2]
T = TypeVar("T")

__all__ = [
    "LARGEST",
    "Auto",
    "Verbosity",
    "auto_or",
    "check_evaluate",
    "check_fit",
    "epoch_selector",
    "freeze",
    "require_callable",
    "require_choice",
    "require_count",
    "require_each",
    "require_flag",
    "require_instance",
    "require_integer",
    "require_items",
    "require_mapping",
    "require_path",
    "require_real",
    "require_seconds",
    "require_sizes",
    "require_text",
    "require_verbosity",
    "shown",
]

LARGEST = 2**63 - 1
"""The largest integer that TensorFlow counts with."""

_shortener = reprlib.Repr()
_shortener.maxstring = _shortener.maxother = 80


def shown(value: object) -> str:
    """Returns a short text for any value, also one that is huge or cannot be printed."""
    try:
        text = _shortener.repr(value)
    except Exception:
        return f"a {type(value).__name__} that cannot be printed"
    return text if len(text) <= 200 else f"{text[:197]}..."


def freeze(instance: object, **values: Any) -> None:
    """Sets attributes of a frozen dataclass, from its `__post_init__`."""
    for name, value in values.items():
        object.__setattr__(instance, name, value)


def require_instance(
    name: str, value: object, kind: type | tuple[type, ...], *, optional: bool = True
) -> None:
    """Raises TypeError unless `value` is of a kind, or None where that is `optional`."""
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if not (isinstance(value, kinds) or (optional and value is None)):
        expected = [each.__name__ for each in kinds] + ["None"] * optional
        raise TypeError(f"{name} must be a {' or '.join(expected)}; got {type(value).__name__}")


def require_integer(name: str, value: Any, *, expected: str = "an integer") -> int:
    """Returns `value` as an int; raises TypeError for anything else, a boolean included."""
    if not isinstance(value, bool) and hasattr(value, "__index__"):
        try:
            return operator.index(value)
        except Exception:  # whatever an object of the user's raises, it is no integer
            pass
    raise TypeError(f"{name} must be {expected}; got {shown(value)} of type {type(value).__name__}")


def require_count(
    name: str, value: Any, *, minimum: int, maximum: int = LARGEST, expected: str = "an integer"
) -> int:
    """Returns `value` as an int, or raises TypeError or ValueError.

    Args:
        name: of the argument.
        value: that was given for it.
        minimum: the smallest that is taken.
        maximum: the largest.
        expected: what is taken, for the message.
    """
    count = require_integer(name, value, expected=expected)
    if count < minimum:
        raise ValueError(f"{name} must be at least {minimum}; got {shown(count)}")
    if count > maximum:
        raise ValueError(f"{name} must be at most {maximum}; got {shown(count)}")
    return count


def require_real(
    name: str,
    value: Any,
    *,
    minimum: float | None = None,
    above: float | None = None,
    maximum: float | None = None,
    below: float | None = None,
    infinite: bool = False,
    expected: str = "a number",
) -> float:
    """Returns `value` as a float, or raises TypeError or ValueError; NaN is always refused.

    Args:
        name: of the argument.
        value: that was given for it.
        minimum: the smallest that is taken.
        above: what it must be larger than.
        maximum: the largest that is taken.
        below: what it must be smaller than.
        infinite: whether infinity is taken.
        expected: what is taken, for the message.
    """
    real = _as_real(value)
    if real is None:
        raise TypeError(f"{name} must be {expected}; got {shown(value)} of type {type(value).__name__}")
    if math.isinf(real) and not infinite:
        raise ValueError(f"{name} must be finite; got {shown(value)}")
    if above is not None and not real > above:
        wanted = "positive" if above == 0 else f"above {above:g}"
        raise ValueError(f"{name} must be {wanted}; got {shown(value)}")
    if minimum is not None and not real >= minimum:
        raise ValueError(f"{name} must be at least {minimum:g}; got {shown(value)}")
    if maximum is not None and not real <= maximum:
        raise ValueError(f"{name} must be at most {maximum:g}; got {shown(value)}")
    if below is not None and not real < below:
        raise ValueError(f"{name} must be below {below:g}; got {shown(value)}")
    if math.isnan(real):
        raise ValueError(f"{name} must be finite; got {shown(value)}")
    return real


def _as_real(value: Any) -> float | None:
    """Returns what is a number as a float, infinite if it is too large for one, and None for all else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, (np.ndarray, np.generic)):
        # "V" without fields: the numbers that NumPy does not know itself, such as bfloat16.
        if value.ndim or value.dtype.kind not in "fiuV" or value.dtype.names is not None:
            return None
    elif not isinstance(value, numbers.Real):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    except Exception:
        return None


def require_seconds(
    name: str, value: Any, *, zero: bool = False, expected: str = "a number of seconds"
) -> float:
    """Returns a time that a thread can wait for, as a float, or raises TypeError or ValueError.

    Args:
        name: of the argument.
        value: that was given for it.
        zero: whether 0 is taken.
        expected: what is taken, for the message.
    """
    minimum, above = (0.0, None) if zero else (None, 0.0)
    # Beyond this Python's locks raise OverflowError: 292 years.
    most = threading.TIMEOUT_MAX
    return require_real(name, value, minimum=minimum, above=above, maximum=most, expected=expected)


def require_flag(name: str, value: Any, *, expected: str = "True or False") -> bool:
    """Returns `value` as a bool; True, False, 1, 0 and their NumPy scalars are taken, else TypeError."""
    taken = isinstance(value, (bool, int, np.bool_, np.integer))
    if isinstance(value, np.ndarray):
        taken = value.ndim == 0 and value.dtype.kind in "biu"
    if taken and value in (0, 1):
        return bool(value)
    raise TypeError(f"{name} must be {expected}; got {shown(value)}")


def require_choice(name: str, value: Any, choices: Iterable[str]) -> Any:
    """Returns `value` as a str if it is one of `choices`, or raises ValueError."""
    known = tuple(choices)
    if not isinstance(value, str) or str(value) not in known:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}; got {shown(value)}")
    return str(value)


def auto_or(name: str, value: Any, require: Callable[..., T], *, expected: str, **options: Any) -> T | Auto:
    """Returns "auto" as it is, and what is no text as `require(name, value, **options)` does.

    Raises:
        ValueError: for another text.
        TypeError: for a value of the wrong type.
    """
    if not isinstance(value, str):
        return require(name, value, expected=expected, **options)
    if str(value) != "auto":
        raise ValueError(f"{name} must be {expected}; got {shown(value)}")
    return "auto"


def require_text(name: str, value: Any, *, empty: bool = False) -> str:
    """Returns `value` as a str, or raises TypeError, or ValueError where it must not be empty."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string; got {shown(value)} of type {type(value).__name__}")
    if not value and not empty:
        raise ValueError(f"{name} must not be empty")
    return str(value)


def require_path(name: str, value: Any) -> Path:
    """Returns a path that the system can take, or raises TypeError or ValueError."""
    try:
        text = os.fspath(value)
    except Exception:
        text = None
    if not isinstance(text, str):
        raise TypeError(f"{name} must be a path; got {shown(value)} of type {type(value).__name__}")
    if not text:
        raise ValueError(f"{name} must be a path; got an empty one")
    if "\0" in text:
        raise ValueError(f"{name} must be a path, without a null character; got {shown(text)}")
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        raise ValueError(f"{name} must be a path that the system can write; got {shown(text)}") from None
    return Path(text)


def require_callable(name: str, value: Any, *, optional: bool = False) -> None:
    """Raises TypeError unless `value` is a function, or None where that is `optional`."""
    if not (callable(value) or (optional and value is None)):
        expected = "a function or None" if optional else "a function"
        raise TypeError(f"{name} must be {expected}; got {shown(value)} of type {type(value).__name__}")


def require_each(name: str, values: Any, require: Callable[[str, Any], T], *, expected: str) -> tuple[T, ...]:
    """Returns the items of a collection, each as `require(name, item)` returns it.

    Raises:
        TypeError: if it is no collection, or an item has the wrong type.
        ValueError: if an item is out of range.
    """
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        raise TypeError(f"{name} must be {expected}; got {shown(values)} of type {type(values).__name__}")
    try:
        items = tuple(values)
    except Exception as error:
        raise TypeError(f"{name} must be {expected}; got {shown(values)}, which raises {error!r}") from error
    return tuple(require(name, item) for item in items)


def require_items(name: str, values: Any, kind: type[T], *, expected: str) -> tuple[T, ...]:
    """Returns the items of a collection if each is of a kind, or raises TypeError."""

    def of_kind(name: str, item: Any) -> T:
        if not isinstance(item, kind):
            raise TypeError(f"{name} must be {expected}; got {shown(item)} in it")
        return item

    return require_each(name, values, of_kind, expected=expected)


def require_sizes(
    name: str, values: Any, *, length: int | None = None, open_ended: bool = False
) -> tuple[Any, ...]:
    """Returns sizes such as those of a shape, each at least 1, or raises TypeError or ValueError.

    Args:
        name: of the argument.
        values: that were given for it.
        length: how many there must be; None for at least one.
        open_ended: whether all but the last may be None, for any size.
    """
    expected = f"a sequence of {length or 'one or more'} sizes"
    items = require_each(name, values, lambda _, item: item, expected=expected)
    if len(items) != length if length is not None else not items:
        raise ValueError(f"{name} must be {expected}; got {shown(values)}")
    last = len(items) - 1
    return tuple(
        None if item is None and open_ended and index < last else require_count(name, item, minimum=1)
        for index, item in enumerate(items)
    )


def require_mapping(name: str, value: Any, *, expected: str) -> Mapping[Any, Any]:
    """Returns `value` if it is a mapping, or raises TypeError."""
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} must be {expected}; got {shown(value)} of type {type(value).__name__}")
    return value


def check_fit(
    *,
    epochs: Any = 1,
    initial_epoch: Any = 0,
    batch_size: Any = None,
    validation_batch_size: Any = None,
    steps_per_epoch: Any = None,
    validation_steps: Any = None,
    validation_split: Any = 0.0,
    validation_freq: Any = 1,
    verbose: Any = "auto",
    shuffle: Any = True,
) -> None:
    """Refuses values that cannot be meant, with the names of `keras.Model.fit`.

    `epochs=0` is taken: as in Keras, nothing is trained.

    Raises:
        TypeError: for a value of the wrong type.
        ValueError: for a value out of range.
    """
    require_count("epochs", epochs, minimum=0)
    require_count("initial_epoch", initial_epoch, minimum=0)
    for name, value in (
        ("batch_size", batch_size),
        ("validation_batch_size", validation_batch_size),
        ("steps_per_epoch", steps_per_epoch),
        ("validation_steps", validation_steps),
    ):
        if value is not None:
            require_count(name, value, minimum=1)
    split = require_real("validation_split", validation_split, infinite=True)
    if not 0.0 <= split < 1.0:
        raise ValueError(f"validation_split must be at least 0 and below 1; got {shown(validation_split)}")
    require_verbosity(verbose)
    if not (isinstance(shuffle, str) and str(shuffle) == "batch"):
        try:
            require_flag("shuffle", shuffle)
        except TypeError as error:
            raise ValueError(f"shuffle must be True, False or 'batch'; got {shown(shuffle)}") from error
    epoch_selector(validation_freq)


def require_verbosity(verbose: Any) -> None:
    """Raises ValueError unless `verbose` is what Keras takes for it."""
    known = isinstance(verbose, (str, bool, int, float, np.generic)) and verbose in ("auto", 0, 1, 2)
    if not known:
        raise ValueError(f"verbose must be 'auto', 0, 1 or 2; got {shown(verbose)}")


def check_evaluate(*, batch_size: Any, steps: Any, verbose: Any) -> None:
    """Refuses values that cannot be meant, with the names of `keras.Model.evaluate`.

    Raises:
        TypeError: for a value of the wrong type.
        ValueError: for a value out of range.
    """
    if steps is not None:
        require_count("steps", steps, minimum=1)
    check_fit(batch_size=batch_size, verbose=verbose)


def epoch_selector(validation_freq: Any, *, name: str = "validation_freq") -> Callable[[int], bool]:
    """Returns whether an epoch, counted from 0, is validated.

    Args:
        validation_freq: every how many epochs, or a sequence of epochs counted from 1.
        name: of the argument, for messages.

    Raises:
        TypeError: if it is neither.
        ValueError: if a number in it is below 1, or, in the words of Keras, if it is an array or a set.
    """
    if isinstance(validation_freq, range):
        for epoch in (*validation_freq[:1], *validation_freq[-1:]):
            require_count(name, epoch, minimum=1)
        return lambda epoch: epoch + 1 in validation_freq
    is_text = isinstance(validation_freq, (str, bytes))
    if isinstance(validation_freq, Sequence) and not is_text:
        chosen = {require_count(name, epoch, minimum=1) for epoch in validation_freq}
        return lambda epoch: epoch + 1 in chosen
    if isinstance(validation_freq, Iterable) and not is_text and getattr(validation_freq, "ndim", True):
        raise ValueError(
            f"Expected `{name}` to be a list or int. Received: {name}={shown(validation_freq)} of the type "
            f"{type(validation_freq)}."
        )
    every = require_count(name, validation_freq, minimum=1)
    return lambda epoch: (epoch + 1) % every == 0
