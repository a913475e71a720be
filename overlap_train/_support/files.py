"""The one owner of how files are opened with care, replaced whole, and locked between processes.

What lies at a path may have been put there by anyone, and a cache lies where other programs, other versions
and other users write too. So what is read is a regular file of a sensible size or nothing, and a pipe in its
place is not waited for; what is written takes the place of what was there.

A lock is `flock` on a file that stays. The kernel drops it when its holder ends, however that happens, so
there is no stale one. POSIX systems only. Any thread.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
import time
from pathlib import Path

__all__ = [
    "IrregularFileError",
    "Replacement",
    "open_lock",
    "open_regular",
    "read_regular",
    "replace_content",
    "replacing",
    "try_lock",
    "wait_for_lock",
    "what_is_no_file",
]


_KINDS = (
    (stat.S_ISLNK, "a link"),
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
)
_DEVICE = "a device"
# Of the name of a file, in that of the one that is to take its place, which must not be too long.
_STEM_CHARACTERS = 32


class IrregularFileError(OSError):
    """What lies at a path is no regular file; the message says what it is."""


def open_regular(
    path: str | os.PathLike[str], flags: int, mode: int = 0o666, *, follow_links: bool = False
) -> int:
    """Open a regular file and return its descriptor; never waits, as the open of a pipe would."""
    careful = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | (0 if follow_links else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags | careful, mode)
    except OSError as error:
        found = None if follow_links else what_is_no_file(path)
        if found is None:
            raise
        raise IrregularFileError(f"it is {found} and not a regular file") from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise IrregularFileError(f"it is {_kind(status.st_mode)} and not a regular file")
    return descriptor


def what_is_no_file(path: str | os.PathLike[str]) -> str | None:
    """Return what lies at a path if that is no regular file: "a link", "a directory" and so on."""
    with contextlib.suppress(OSError):
        mode = os.lstat(path).st_mode
        return None if stat.S_ISREG(mode) else _kind(mode)
    return None


def read_regular(path: str | os.PathLike[str], *, most_bytes: int, follow_links: bool = True) -> bytes:
    """Return the content of a regular file; never waits for a writer."""
    descriptor = open_regular(path, os.O_RDONLY, follow_links=follow_links)
    try:
        if os.fstat(descriptor).st_size > most_bytes:
            raise OSError(errno.EFBIG, f"this file has more than {most_bytes} bytes", os.fspath(path))
        content = bytearray()
        while len(content) <= most_bytes and (chunk := os.read(descriptor, 1 << 20)):
            content += chunk
        return bytes(content[:most_bytes])
    finally:
        os.close(descriptor)


class Replacement:
    """Puts a file that its block writes in the place of another, or deletes it where the block raises.

    A reader never sees half of it. The block gets the file, which lies in the folder of the other. If it
    cannot be put there, the end of the block raises OSError, and what was there is as before.
    """

    def __init__(self, target: Path, unfinished: Path) -> None:
        self._target = target
        self._unfinished = unfinished

    def __enter__(self) -> Path:
        return self._unfinished

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                os.replace(self._unfinished, self._target)
                return
        except OSError:
            self._delete()
            raise
        self._delete()

    def _delete(self) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self._unfinished)


def replacing(path: str | os.PathLike[str]) -> Replacement:
    """Give a file to write that takes the place of `path` on success, and vanishes on an error.

    The folders above `path` are made. The file lies in the same folder and keeps the suffix of `path`. A
    device is left alone: who may replace `/dev/null` would take it from the whole system.
    """
    target = Path(path)
    if what_is_no_file(target) == _DEVICE:
        raise IrregularFileError(f"{target} is {_DEVICE} and not a regular file")
    target.parent.mkdir(parents=True, exist_ok=True)
    name = f".{target.stem[:_STEM_CHARACTERS]}-{secrets.token_hex(8)}{target.suffix}"
    unfinished = target.parent / name
    # Not by `tempfile`, whose files are the owner's alone. What others may do with a file is the process's to
    # say, and to ask for that (`os.umask`) is to change it for all threads.
    os.close(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
    return Replacement(target, unfinished)


def replace_content(path: Path, text: str) -> None:
    """Replace a file at once, so that a reader never sees half of it; its folders are made."""
    with replacing(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


def _kind(mode: int) -> str:
    return next((name for is_kind, name in _KINDS if is_kind(mode)), _DEVICE)


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
