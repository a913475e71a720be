"""Refusals: what is raised of the arguments of a call before anything of it has been begun. Any thread.

Whoever has made the call for somebody else, as `routed()` does for Keras, may then let another one do it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

__all__ = ["is_refusal_of", "refusing"]

_OWNER = "_overlap_train_refused_by"


@contextlib.contextmanager
def refusing(owner: object) -> Iterator[None]:
    """Marks the TypeErrors and ValueErrors of a block as refusals of one owner: callbacks may call others."""
    try:
        yield
    except (TypeError, ValueError) as error:
        with contextlib.suppress(Exception):  # whose class refuses it
            setattr(error, _OWNER, _mark_of(owner))
        raise


def is_refusal_of(owner: object, error: BaseException) -> bool:
    """Whether an exception says that `owner` has refused a call and begun nothing."""
    return getattr(error, _OWNER, None) == _mark_of(owner)


def _mark_of(owner: object) -> str:
    """Returns what tells an object from all others that live. Plain text: the error may be sent elsewhere."""
    return f"{os.getpid()} {id(owner)}"
