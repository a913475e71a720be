"""The lock that lets one process write into a directory.

The lock is `flock` on a file that stays: the kernel drops it when its holder ends, however that happens, so
there is no stale lock. POSIX systems only.
"""

from __future__ import annotations

import errno
import fcntl
import os
import warnings
import weakref
from contextlib import suppress
from pathlib import Path

from overlap_train.errors import CheckpointError

__all__ = ["DirectoryLock"]

_NO_LOCKS_HERE = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class DirectoryLock:
    """Keeps other writers, in this process and in others, out of a directory.

    Use it from one thread at a time.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Takes the lock; does nothing if it is held already.

        Raises:
            CheckpointError: another store holds it.
            OSError: the lock file cannot be made.
        """
        if self._descriptor is not None:
            return
        descriptor = os.open(self._directory / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            self._lock(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        _held.add(self)

    def release(self) -> None:
        """Gives the lock back; may be called again."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _lock(self, descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            raise CheckpointError(
                f"Another training (process {holder}) writes its checkpoints into {self._directory}. Wait "
                "until it has ended, or give this one another directory."
            ) from error
        except OSError as error:
            if error.errno not in _NO_LOCKS_HERE:
                raise
            warnings.warn(
                f"The file system of {self._directory} has no locks, so nothing keeps a second training from "
                "writing its checkpoints there.",
                RuntimeWarning,
                stacklevel=5,
            )
        with suppress(OSError):  # who holds it is for the message only
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode("ascii"), 0)

    def __del__(self) -> None:
        if getattr(self, "_descriptor", None) is not None:
            warnings.warn(f"The lock of {self._directory} was not released.", ResourceWarning, stacklevel=1)
            self.release()


_held: weakref.WeakSet[DirectoryLock] = weakref.WeakSet()


def _leave_to_parent() -> None:
    """Closes a forked child's copies, with which an orphaned worker would hold a dead run's lock."""
    for lock in list(_held):
        lock.release()


os.register_at_fork(after_in_child=_leave_to_parent)
