"""What is written is made durable, and what stands in its way is explained."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from overlap_train._support.files import what_is_no_file

__all__ = ["explain", "sync", "sync_directory"]

# What the file systems of networks, of user space and of sealed images answer to a request that they lack.
_NO_SYNC_HERE = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EROFS)
# A directory may be searched and written without being read, and some systems sync none.
_NO_SYNC_OF_DIRECTORIES = (*_NO_SYNC_HERE, errno.EACCES, errno.EPERM, errno.EBADF, errno.EISDIR)


def sync(descriptor: int) -> None:
    """Make what was written to a file durable, where the file system knows how to."""
    _sync(descriptor, _NO_SYNC_HERE)


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable, which syncing a file does not."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in _NO_SYNC_OF_DIRECTORIES:
            raise
        return
    try:
        _sync(descriptor, _NO_SYNC_OF_DIRECTORIES)
    finally:
        os.close(descriptor)


def explain(error: OSError, path: str | os.PathLike[str], *, directory: bool = False) -> str:
    """Return what is wrong with a path and what to do about it, after `error` came of using it.

    `directory` says that a directory belongs there.
    """
    reason = error.strerror or str(error)
    obstacle = _obstacle(error, path, directory)
    if obstacle is not None:
        return f"{reason}. {obstacle}"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"{reason}. Let user {os.geteuid()} read and write there, or give another directory"
    if error.errno == errno.EROFS:
        return f"{reason}. Give a directory on a file system that can be written"
    if error.errno == errno.EFBIG:
        return f"{reason}. Raise the limit of a file's size (ulimit -f), or give a directory on another disk"
    if error.errno == errno.ENAMETOOLONG:
        return f"{reason}. Give a shorter path"
    return f"{reason}. Give another directory" if directory else reason


def _sync(descriptor: int, tolerated: tuple[int, ...]) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in tolerated:
            raise


def _obstacle(error: OSError, path: str | os.PathLike[str], directory: bool) -> str | None:
    """Return what is in the way: something that is no file where one belongs, or no directory."""
    in_the_way = (errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENOTEMPTY)
    if error.errno not in (*in_the_way, *([errno.ENOENT] if directory else [])):
        return None
    for place in () if directory else (error.filename2, error.filename, path):
        if place is None or not os.path.lexists(place):
            continue
        found = what_is_no_file(place)
        if found is not None and error.errno != errno.ENOTDIR:
            return f"{os.fspath(place)} is {found}, where a file belongs; move it away"
    for place in (Path(path), *Path(path).parents):
        if os.path.lexists(place) and not os.path.isdir(place):
            return f"{place} is no directory; move it away, or give another directory"
    return None
