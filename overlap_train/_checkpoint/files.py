"""Files opened and made durable with care: what lies at a path may have been put there by anyone."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

__all__ = ["IrregularFileError", "explain", "open_regular", "sync", "sync_directory"]

# What the file systems of networks, of user space and of sealed images answer to a request that they lack.
_NO_SYNC_HERE = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EROFS)
# A directory may be searched and written without being read, and some systems sync none.
_NO_SYNC_OF_DIRECTORIES = (*_NO_SYNC_HERE, errno.EACCES, errno.EPERM, errno.EBADF, errno.EISDIR)

_KINDS = (
    (stat.S_ISLNK, "a link"),
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
)


class IrregularFileError(Exception):
    """What lies at a path is no regular file; the message says what it is."""


def open_regular(path: str | os.PathLike[str], flags: int, mode: int = 0o666) -> int:
    """Opens a regular file and returns its descriptor; neither follows a link nor waits for a pipe.

    Args:
        path: of the file.
        flags: as for `os.open`.
        mode: of a file that is made.

    Raises:
        IrregularFileError: something else lies there.
        OSError: it cannot be opened.
    """
    careful = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
    try:
        descriptor = os.open(path, flags | careful, mode)
    except OSError as error:
        found = _irregular(path)
        if found is None:
            raise
        raise IrregularFileError(f"it is {found} and not a regular file") from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise IrregularFileError(f"it is {_kind(status.st_mode)} and not a regular file")
    return descriptor


def sync(descriptor: int) -> None:
    """Makes what was written to a file durable, where the file system knows how to.

    Raises:
        OSError: it failed, such as on a full or a failing disk.
    """
    _sync(descriptor, _NO_SYNC_HERE)


def sync_directory(directory: Path) -> None:
    """Makes the names in a directory durable, which syncing a file does not.

    Raises:
        OSError: it failed, such as on a failing disk.
    """
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


def explain(error: OSError, path: str | os.PathLike[str]) -> str:
    """Returns what is wrong with a path and what to do about it, after `error` came of using it."""
    reason = error.strerror or str(error)
    obstacle = _obstacle(error, path)
    if obstacle is not None:
        return f"{reason}. {obstacle}"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"{reason}. Let user {os.geteuid()} read and write there, or give another directory"
    if error.errno == errno.EROFS:
        return f"{reason}. Give a directory on a file system that can be written"
    if error.errno == errno.ENAMETOOLONG:
        return f"{reason}. Give a shorter path"
    return reason


def _sync(descriptor: int, tolerated: tuple[int, ...]) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in tolerated:
            raise


def _obstacle(error: OSError, path: str | os.PathLike[str]) -> str | None:
    """Returns what is in the way: something that is no file where one belongs, or no directory."""
    if error.errno not in (errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENOTEMPTY):
        return None
    for place in (error.filename2, error.filename, path):
        if place is None or not os.path.lexists(place):
            continue
        found = _irregular(place)
        if found is not None and error.errno != errno.ENOTDIR:
            return f"{os.fspath(place)} is {found}, where a file belongs; move it away"
    for place in (Path(path), *Path(path).parents):
        if os.path.lexists(place) and not os.path.isdir(place):
            return f"{place} is no directory; move it away, or give another directory"
    return None


def _irregular(path: str | os.PathLike[str]) -> str | None:
    """Returns what lies at a path if that is no regular file."""
    with suppress(OSError):
        mode = os.lstat(path).st_mode
        return None if stat.S_ISREG(mode) else _kind(mode)
    return None


def _kind(mode: int) -> str:
    return next((name for is_kind, name in _KINDS if is_kind(mode)), "a device")
