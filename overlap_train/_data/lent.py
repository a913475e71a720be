"""Memory that is read where it lies: who else could write it."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from overlap_train.zero_copy import explain


def is_lent(array: Any) -> bool:
    """Whether TensorFlow may read an array where it lies: its layout fits, and no other object can write."""
    if type(array) not in (np.ndarray, np.memmap) or tf.config.list_logical_devices("GPU"):
        return False
    if any(view.flags.writeable for view in _views(array)) or not explain(array).zero_copy:
        return False
    return mapped_file(array) is not None or _is_constant(array)


def mapped_file(array: Any) -> str | None:
    """Returns the file that an array shows; None if it shows none, or one without a name."""
    maps = (view for view in _views(array) if isinstance(view, np.memmap))
    return next((str(view.filename) for view in maps if view.filename is not None), None)


def _is_constant(array: Any) -> bool:
    """Whether no other object can write the memory of a read-only array."""
    *_, last = _views(array)
    if last.base is None:
        return True
    try:
        owner = memoryview(last.base).obj
        owner = last.base if owner is None else owner
        return memoryview(owner).readonly and not isinstance(owner, mmap.mmap)
    except TypeError:  # it does not say
        return False


def _views(array: Any) -> Iterator[Any]:
    """Yields an array, the one whose memory it shows, and so on."""
    while isinstance(array, np.ndarray):
        yield array
        array = array.base


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
