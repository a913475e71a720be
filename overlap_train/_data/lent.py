"""Memory that is read where it lies: who else could write it."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable
from typing import Any

import numpy as np


def mapped_file(array: Any) -> str | None:
    """Returns the file that an array shows; None if it shows none, or one without a name."""
    while isinstance(array, np.ndarray):
        if isinstance(array, np.memmap) and array.filename is not None:
            return str(array.filename)
        array = array.base
    return None


def is_constant(array: Any) -> bool:
    """Whether no other object can write the memory of a read-only array, unless it is a file."""
    base = array
    while isinstance(base, np.ndarray):
        base = base.base
    if base is None or mapped_file(array) is not None:
        return True
    try:
        owner = memoryview(base).obj
        owner = base if owner is None else owner
        return memoryview(owner).readonly and not isinstance(owner, mmap.mmap)
    except TypeError:  # it does not say
        return False


class MappedFiles:
    """The files that arrays show, as they were when the training began."""

    def __init__(self, arrays: Iterable[Any]) -> None:
        names = sorted({file for array in arrays if (file := mapped_file(array)) is not None})
        self._before = {name: os.stat(name) for name in names if os.path.exists(name)}

    def require_unwritten(self) -> None:
        """Raises ValueError if one has been written since; another in its place leaves the rows alone."""
        for name, before in self._before.items():
            now = os.stat(name) if os.path.exists(name) else before
            is_same = (now.st_dev, now.st_ino) == (before.st_dev, before.st_ino)
            if is_same and (now.st_size, now.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
                raise ValueError(
                    f"a mapped file was written during the training: {name}; write another one, or train on "
                    "a copy of the rows (numpy.array)"
                )
