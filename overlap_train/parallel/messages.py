"""Values as hosts send them to each other: JSON, whatever a callback has put into the logs. Any thread."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from overlap_train._support.arguments import shown

__all__ = ["encoded"]


def encoded(value: Any) -> bytes:
    """Return a value in JSON; who waits for it waits for nothing else.

    Arrays and tensors become numbers and lists, and what else JSON lacks text. Names that it lacks are left
    out.
    """
    return json.dumps(value, default=_plain, skipkeys=True).encode()


def _plain(value: Any) -> Any:
    """Return what JSON knows in the place of what it does not."""
    try:
        return np.asarray(value, float).tolist()
    except Exception:  # whatever an object of the user's raises, it is no number
        return shown(value)
