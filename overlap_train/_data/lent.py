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
        self._names = {file for array in arrays if (file := mapped_file(array)) is not None}
        self._versions = self._present()

    def require_unwritten(self) -> None:
        """Raises ValueError if a file has been written since."""
        if self._present() != self._versions:
            raise ValueError(
                f"a mapped file was written during the training: {', '.join(sorted(self._names))}; write "
                "another one, or train on a copy of the rows (numpy.array)"
            )

    def _present(self) -> list[tuple[int, ...]]:
        stats = [os.stat(file) for file in sorted(self._names) if os.path.exists(file)]
        return [(stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in stats]
