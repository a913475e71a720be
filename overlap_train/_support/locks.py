"""The one owner of locks between processes: `flock` on a file that stays. POSIX systems only. Any thread.

The kernel drops such a lock when its holder ends, however that happens, so there is no stale one.
"""

from __future__ import annotations

import fcntl
import os
import time

from overlap_train._support.files import open_regular

__all__ = ["open_lock", "try_lock", "wait_for_lock"]

_POLL_S = 0.1


def open_lock(path: str | os.PathLike[str], mode: int = 0o666) -> int:
    """Open the file of a lock, made if need be; closing the descriptor gives the lock back."""
    return open_regular(path, os.O_RDWR | os.O_CREAT, mode)


def try_lock(descriptor: int) -> bool:
    """Take the lock of an open file; return whether it is ours now, which it is not if another holds it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def wait_for_lock(path: str | os.PathLike[str], mode: int = 0o666, *, limit_s: float) -> int:
    """Return the descriptor of a lock that is ours, or raise TimeoutError; closing it gives it back."""
    deadline_s = time.monotonic() + limit_s
    descriptor = open_lock(path, mode)
    try:
        while not try_lock(descriptor):
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"another process has held it for {limit_s:g} s")
            time.sleep(_POLL_S)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
