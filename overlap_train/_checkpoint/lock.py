"""The lock that lets one process write into a directory.

Its file is written to, so it is used only if it can be nobody else's: a regular file of one name, which holds
nothing or the number of a process.
"""

from __future__ import annotations

import errno
import os
import warnings
import weakref
from contextlib import suppress
from pathlib import Path

from overlap_train._support.files import IrregularFileError
from overlap_train._support.locks import open_lock, try_lock
from overlap_train.errors import CheckpointError

__all__ = ["DirectoryLock"]

_NO_LOCKS_HERE = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
_LONGEST_CONTENT = 32


class DirectoryLock:
    """Keeps other writers, in this process and in others, out of a directory.

    Use it from one thread at a time.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock; does nothing if it is held already.

        One whose file was deleted or replaced since, with its directory or alone, keeps nobody out any more
        and is taken again. CheckpointError means that another store holds it, or that something that is no
        lock lies in its place; OSError that the lock file cannot be made.
        """
        path = self._directory / ".lock"
        if self._descriptor is not None:
            if _is_at(path, self._descriptor):
                return
            self.release()
        try:
            descriptor = open_lock(path)
        except IrregularFileError as error:
            raise CheckpointError(_not_a_lock(path, str(error))) from error
        try:
            self._require_own(path, descriptor)
            self._lock(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        _held.add(self)

    def release(self) -> None:
        """Give the lock back; may be called again."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    @staticmethod
    def _require_own(path: Path, descriptor: int) -> None:
        if os.fstat(descriptor).st_nlink > 1:
            raise CheckpointError(_not_a_lock(path, "the file has another name too"))
        content = os.pread(descriptor, _LONGEST_CONTENT + 1, 0)
        if len(content) > _LONGEST_CONTENT or not (content.strip(b"\0 \r\n") or b"0").isdigit():
            raise CheckpointError(_not_a_lock(path, "it holds something else than the number of a process"))

    def _lock(self, descriptor: int) -> None:
        try:
            locked = try_lock(descriptor)
        except OSError as error:
            if error.errno not in _NO_LOCKS_HERE:
                raise
            warnings.warn(
                f"The file system of {self._directory} has no locks, so nothing keeps a second training from "
                "writing its checkpoints there.",
                RuntimeWarning,
                stacklevel=5,
            )
            locked = True
        if not locked:
            holder = os.pread(descriptor, _LONGEST_CONTENT, 0).decode("ascii", "replace").strip() or "unknown"
            raise CheckpointError(
                f"Another training (process {holder}) writes its checkpoints into {self._directory}. Wait "
                "until it has ended, or give this one another directory."
            )
        with suppress(OSError):  # who holds it is for the message only
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode("ascii"), 0)

    def __del__(self) -> None:
        if getattr(self, "_descriptor", None) is not None:
            warnings.warn(f"The lock of {self._directory} was not released.", ResourceWarning, stacklevel=1)
            self.release()


def _is_at(path: Path, descriptor: int) -> bool:
    """Whether an open file is still the one at a path."""
    with suppress(OSError):
        return os.path.samestat(os.lstat(path), os.fstat(descriptor))
    return False


def _not_a_lock(path: Path, reason: str) -> str:
    return (
        f"{path} is not the lock of a training's checkpoints: {reason}. Look at it and delete it, or give "
        "another directory."
    )


_held: weakref.WeakSet[DirectoryLock] = weakref.WeakSet()


def _leave_to_parent() -> None:
    """Close a forked child's copies, with which an orphaned worker would hold a dead run's lock."""
    for lock in list(_held):
        lock.release()


os.register_at_fork(after_in_child=_leave_to_parent)
