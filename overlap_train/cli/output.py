"""Standard output for the report alone, where a program reads it."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TextIO

__all__ = ["report_only"]


def report_only(resources: contextlib.ExitStack, *, put_back: bool) -> TextIO:
    """Send what is written to standard output to standard error, also by C code and other processes.

    Args:
        resources: end it.
        put_back: whether standard output is given back at the end. Not in a process of the command's own:
            what a script prints when the interpreter ends would stand behind the report.

    Returns:
        A stream to what standard output was.
    """
    before: TextIO | None = sys.stdout
    if before is None:  # closed by who started the process
        return resources.enter_context(open(os.devnull, "w", encoding="utf-8"))
    before.flush()
    kept = _copied(1)
    if kept is not None:
        resources.callback(os.close, kept)
    if put_back:
        resources.callback(_give_back, before, kept)
    _point(1, at=2)
    sys.stdout = sys.stderr
    if kept is None or _descriptor(before) != 1:
        return before
    stream = open(kept, "w", encoding=before.encoding, errors=before.errors, closefd=False)  # noqa: SIM115
    return resources.enter_context(stream)


def _give_back(before: TextIO, kept: int | None) -> None:
    before.flush()
    if kept is not None:
        _point(1, at=kept)
    sys.stdout = before


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
