"""Standard output for the report alone, where a program reads it."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TextIO

__all__ = ["report_only"]


@contextlib.contextmanager
def report_only(*, put_back: bool) -> Iterator[TextIO]:
    """Send standard output to standard error, also of C code, and yield a stream to what it was.

    In a process of the command's own it is not put back: what a script prints when the interpreter ends would
    stand behind the report.
    """
    before: TextIO | None = sys.stdout
    if before is None:  # closed by who started the process
        with open(os.devnull, "w", encoding="utf-8") as nowhere:
            yield nowhere
        return
    before.flush()
    kept = _copied(1)
    _point(1, at=2)
    sys.stdout = sys.stderr
    try:
        if kept is None or _descriptor(before) != 1:
            yield before
        else:
            with _to(kept, before) as stream:
                yield stream
    finally:
        if put_back:
            before.flush()
            if kept is not None:
                _point(1, at=kept)
            sys.stdout = before
        if kept is not None:
            os.close(kept)


@contextlib.contextmanager
def _to(descriptor: int, like: TextIO) -> Iterator[TextIO]:
    with open(descriptor, "w", encoding=like.encoding, errors=like.errors, closefd=False) as stream:
        yield stream


def _copied(descriptor: int) -> int | None:
    with contextlib.suppress(OSError):  # there may be none
        return os.dup(descriptor)
    return None


def _point(descriptor: int, *, at: int) -> None:
    with contextlib.suppress(OSError):
        os.dup2(at, descriptor)


def _descriptor(stream: TextIO) -> int | None:
    """Return what a stream writes to, None for one that is no file, as in a test or a notebook."""
    try:
        return stream.fileno()
    except (OSError, ValueError, AttributeError):
        return None
