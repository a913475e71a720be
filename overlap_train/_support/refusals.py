"""Refusals: what is raised of the arguments of a call before anything of it has been begun. Any thread.

Whoever has made the call for somebody else, as `routed()` does for Keras, may then let another one do it.
"""

from __future__ import annotations

import contextlib
import os

__all__ = ["Refusing", "is_refusal_of"]

_OWNER = "_overlap_train_refused_by"


class Refusing:
    """Marks the TypeErrors and ValueErrors of its block as refusals.

    The owner refuses: a call within one of its callbacks may be refused by another one.
    """

    def __init__(self, owner: object) -> None:
        self._owner = owner

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, (TypeError, ValueError)):
            with contextlib.suppress(Exception):  # whose class refuses it
                setattr(error, _OWNER, _mark_of(self._owner))


def is_refusal_of(owner: object, error: BaseException) -> bool:
    """Whether an exception says that `owner` has refused a call and begun nothing."""
    return getattr(error, _OWNER, None) == _mark_of(owner)


def _mark_of(owner: object) -> str:
    """Return what tells an object from all others that live. Plain text: the error may be sent elsewhere."""
    return f"{os.getpid()} {id(owner)}"
