"""The one owner of what counts as an integer and a number; scalars of NumPy are, and a boolean is none.

What is checked comes back as an int or a float of Python. Free of TensorFlow. Any thread.
"""

from __future__ import annotations

import math
import numbers
import operator
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from overlap_train._support.arguments import require_each, shown

__all__ = [
    "LARGEST",
    "array_of",
    "is_count",
    "require_count",
    "require_integer",
    "require_real",
    "require_seconds",
    "require_sizes",
    "scalar",
]

LARGEST = 2**63 - 1
"""The largest integer that TensorFlow counts with."""


def scalar(value: Any) -> Any:
    """Return the number of Python in an array, a tensor or a variable without dimensions, else `value`."""
    try:
        # By name, as TensorFlow is not imported here; whatever an object of others raises, it is no number.
        if not isinstance(value, (np.ndarray, np.generic)) and tuple(value.shape) == ():
            value = value.numpy()
        return value.item() if isinstance(value, (np.ndarray, np.generic)) and not value.ndim else value
    except Exception:
        return value


def array_of(value: Any) -> npt.NDArray[Any]:
    """Return what NumPy makes of a number, an array or a tensor; it shares the memory of most tensors.

    A tensor without dimensions whose type NumPy lacks, such as bfloat16, fails where NumPy itself asks it.
    """
    is_scalar = hasattr(value, "numpy") and getattr(value, "shape", None) == ()
    return np.asarray(value.numpy() if is_scalar else value)


def is_count(value: object, largest: int = LARGEST) -> bool:
    """Whether a value read from a file is an int from 0 to `largest`, and nothing that only acts as one."""
    return type(value) is int and 0 <= value <= largest


def require_integer(name: str, value: Any, *, expected: str = "an integer") -> int:
    """Return `value` as an int; raise TypeError for anything else, a boolean included."""
    if not isinstance(value, bool) and hasattr(value, "__index__"):
        try:
            return operator.index(value)
        except Exception:  # whatever an object of the user's raises, it is no integer
            pass
    raise TypeError(f"{name} must be {expected}; got {shown(value)} of type {type(value).__name__}")


def require_count(
    name: str, value: Any, *, minimum: int, maximum: int = LARGEST, expected: str = "an integer"
) -> int:
    """Return `value` as an int, or raise TypeError or ValueError."""
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
    """Return `value` as a float, or raise TypeError or ValueError; NaN is always refused."""
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
    """Return what is a number as a float, infinite if it is too large for one, and None for all else."""
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
    """Return a time that a thread can wait for, as a float, or raise TypeError or ValueError."""
    minimum, above = (0.0, None) if zero else (None, 0.0)
    # Beyond this Python's locks raise OverflowError: 292 years.
    most = threading.TIMEOUT_MAX
    return require_real(name, value, minimum=minimum, above=above, maximum=most, expected=expected)


def require_sizes(
    name: str, values: Any, *, length: int | None = None, open_ended: bool = False
) -> tuple[Any, ...]:
    """Return sizes such as those of a shape, each at least 1, or raise TypeError or ValueError."""
    expected = f"a sequence of {length or 'one or more'} sizes"
    items = require_each(name, values, lambda _, item: item, expected=expected)
    if len(items) != length if length is not None else not items:
        raise ValueError(f"{name} must be {expected}; got {shown(values)}")
    last = len(items) - 1
    return tuple(
        None if item is None and open_ended and index < last else require_count(name, item, minimum=1)
        for index, item in enumerate(items)
    )
