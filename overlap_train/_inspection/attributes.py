"""The attributes of an object, without running any code of its class."""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Mapping
from typing import Any


def variables_of(owner: Any) -> Mapping[str, Any]:
    """Return the attributes of an object itself, those in slots too, without running any code."""
    try:
        variables: Mapping[str, Any] = object.__getattribute__(owner, "__dict__")
    except AttributeError:
        variables = {}
    kind: Any = type(owner)
    slots = slots_of(kind)
    if not slots:
        return variables
    variables = dict(variables)
    for name, slot in slots:
        with contextlib.suppress(AttributeError):  # an empty slot
            variables[name] = slot.__get__(owner)
    return variables


@functools.lru_cache(maxsize=1024)
def slots_of(kind: Any) -> tuple[tuple[str, Any], ...]:
    """Return the slots of a class and its bases, as `__slots__` names them."""
    return tuple(
        (name, member)
        for base in reversed(kind.__mro__)
        if "__slots__" in vars(base)
        for name, member in vars(base).items()
        if isinstance(member, types.MemberDescriptorType)
    )
