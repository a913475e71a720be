"""Values that users' code has made, as arrays of NumPy's and as JSON. Any thread."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt

from overlap_train._support.arguments import short_repr


def array_of(value: Any) -> npt.NDArray[Any]:
    """Return a number, an array or a tensor as an array of NumPy's; it shares the memory of most tensors.

    `np.asarray` fails for a tensor without dimensions of a type that NumPy lacks, such as bfloat16.
    """
    is_scalar = hasattr(value, "numpy") and getattr(value, "shape", None) == ()
    return np.asarray(value.numpy() if is_scalar else value)


def encoded(value: Any) -> bytes:
    """Return a value in JSON, whatever a callback has put into the logs.

    Arrays and tensors become numbers and lists, and what else JSON lacks text. Names that it lacks are left
    out.
    """
    return json.dumps(value, default=_plain, skipkeys=True).encode()


def _plain(value: Any) -> Any:
    """Return what JSON knows in the place of what it does not."""
    try:
        return np.asarray(value, float).tolist()
    except Exception:  # whatever an object of the user's raises, it is no number
        return short_repr(value)
