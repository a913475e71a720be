"""Files that are opened with care, replaced as a whole, and locked between processes.

Anyone may have put something at a path; other programs, versions and users write to a cache too. So only a
regular file of a sensible size is read, never a pipe, which might block, and a file that is written replaces
whatever was there.

A lock is `flock` on a file that stays. The kernel releases it when its holder ends in any way, so there are
no stale locks. POSIX systems only. Any thread.
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
from typing import Any

from overlap_train._support.arguments import short_repr, wrong_type

_STEM_CHARACTERS = 32  # of a file's name in that of its replacement, which must not get too long


def open_regular(
    path: str | os.PathLike[str], flags: int, mode: int = 0o666, *, follow_links: bool = False
) -> int:
    """Open a regular file and return its descriptor; never waits, as the open of a pipe would.

    Anything else is an OSError.
    """
    careful = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | (0 if follow_links else os.O_NOFOLLOW)
    descriptor = os.open(path, flags | careful, mode)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
    return descriptor


def read_regular(path: str | os.PathLike[str], *, most_bytes: int, follow_links: bool = True) -> bytes:
    """Return the content of a regular file of at most `most_bytes`, or raise OSError."""
    with open(open_regular(path, os.O_RDONLY, follow_links=follow_links), "rb") as file:
        if os.fstat(file.fileno()).st_size > most_bytes:
            raise OSError(errno.EFBIG, f"this file has more than {most_bytes} bytes", os.fspath(path))
        return file.read(most_bytes)


class Replacing:
    """Gives a file to write, which replaces `path` at the end of the block, or is deleted if that raises.

    A reader never sees half of it. The folders above `path` are made. The file keeps the suffix of `path`. A
    device is refused: whoever may replace `/dev/null` would take it from the whole system.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._target = target = Path(path)
        self._unfinished = target.parent / (
            f".{target.stem[:_STEM_CHARACTERS]}-{secrets.token_hex(8)}{target.suffix}"
        )

    def __enter__(self) -> Path:
        target = self._target
        if not target.is_symlink() and (target.is_char_device() or target.is_block_device()):
            raise OSError(errno.EINVAL, "a device, which no file may replace", os.fspath(target))
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._unfinished.touch(exist_ok=False)  # not by `tempfile`, whose files only their owner may read
        except OSError:
            self._delete()
            raise
        return self._unfinished

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                os.replace(self._unfinished, self._target)
        except BaseException:
            self._delete()
            raise
        if kind is not None:
            self._delete()

    def _delete(self) -> None:
        with contextlib.suppress(OSError):
            self._unfinished.unlink()


def replace_content(path: Path, text: str) -> None:
    """Replace the content of a file at once, so that a reader never sees half of it; make its folders."""
    with Replacing(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


_POLL_S = 0.1


def open_lock(path: str | os.PathLike[str], mode: int = 0o666) -> int:
    """Open the file of a lock, which is made if needed; closing the descriptor releases the lock."""
    return open_regular(path, os.O_RDWR | os.O_CREAT, mode)


def try_lock(descriptor: int) -> bool:
    """Take the lock of an open file, unless another has it; return whether it is ours now."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def wait_for_lock(path: str | os.PathLike[str], mode: int = 0o666, *, limit_s: float) -> int:
    """Take a lock and return its descriptor, or raise TimeoutError; closing the descriptor releases it."""
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


def require_path(name: str, value: Any) -> Path:
    """Return a path that the system can take, or raise TypeError or ValueError."""
    if not isinstance(value, (str, os.PathLike)) or not isinstance(os.fspath(value), str):
        raise wrong_type(name, value, "a path")
    try:
        os.lstat(value or "\0")
    except (OSError, ValueError) as error:
        if isinstance(error, ValueError) or error.errno == errno.ENAMETOOLONG:
            raise ValueError(f"{name} must be a path; got {short_repr(value)} ({error})") from None
    return Path(value)
