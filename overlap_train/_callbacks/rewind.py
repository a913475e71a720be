"""Files that callbacks append to, taken back to where a resumed run goes on.

A checkpoint marks how far the training had written each of its CSV logs. When the training goes on, a log is
cut off at its mark, because the epochs behind it run again. A log that another training has written since, or
appended to first, stays whole. No file is cut before all else has been put back: a training that is refused
leaves its logs as they were.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

import keras

from overlap_train.options.epoch_only import EpochOnly

# Bytes before the mark by which a log is recognised.
_TAIL_BYTES = 1 << 16


@dataclass(frozen=True)
class FileMark:
    """How far a callback had written its file."""

    path: str  # absolute
    size_bytes: int  # up to the mark
    tail_sha256: str  # of the last bytes before the mark


def files_of(callbacks: Iterable[keras.callbacks.Callback]) -> dict[str, keras.callbacks.CSVLogger]:
    """Return the callbacks that append to files, by the absolute paths of these.

    TensorBoard's event files stay: the resumed run begins another, and epochs that ran twice are in both.
    """
    loggers = _loggers(callbacks)
    return {os.path.abspath(each.filename): each for each in loggers if "://" not in each.filename}


def mark_files(paths: Iterable[str]) -> tuple[FileMark, ...]:
    """Mark the present ends of files."""
    marks = []
    for path in filter(os.path.isfile, paths):
        with suppress(OSError), open(path, "rb") as file:
            size_bytes = os.fstat(file.fileno()).st_size
            marks.append(FileMark(path, size_bytes, _tail_sha256(file.fileno(), size_bytes)))
    return tuple(marks)


def append_to_files(callbacks: Iterable[keras.callbacks.Callback]) -> list[keras.callbacks.CSVLogger]:
    """Have CSVLoggers go on with files that `on_train_begin` would empty; return those that are changed."""
    loggers = _loggers(callbacks)
    changed = [logger for logger in loggers if not logger.append]
    for logger in changed:
        logger.append = True
    return changed


def _loggers(callbacks: Iterable[keras.callbacks.Callback]) -> list[keras.callbacks.CSVLogger]:
    inner = [each.callback if isinstance(each, EpochOnly) else each for each in callbacks]
    return [each for each in inner if isinstance(each, keras.callbacks.CSVLogger)]


def rewind_files(
    callbacks: Iterable[keras.callbacks.Callback], marks: Iterable[FileMark], epoch: int
) -> None:
    """Cut marked files off at their marks where the row of `epoch` follows, which runs again.

    Call it behind `on_train_begin`, when nothing can be refused any more. A file that cannot be cut is an
    OSError.
    """
    loggers = files_of(callbacks)
    for mark in marks:
        if mark.path in loggers and os.path.isfile(mark.path):
            _cut(mark, epoch)


def _tail_sha256(descriptor: int, size_bytes: int) -> str:
    """Return the digest of the last bytes before a place in a file."""
    start = max(0, size_bytes - _TAIL_BYTES)
    return hashlib.sha256(os.pread(descriptor, size_bytes - start, start)).hexdigest()


def _cut(mark: FileMark, epoch: int) -> None:
    """Cut off what follows a mark, if it begins with the row of an epoch, or with a part of that."""
    with open(mark.path, "r+b") as file:
        is_shorter = os.fstat(file.fileno()).st_size < mark.size_bytes
        if is_shorter or _tail_sha256(file.fileno(), mark.size_bytes) != mark.tail_sha256:
            return
        file.seek(mark.size_bytes)
        if not mark.size_bytes:
            file.readline()  # the header stays: the logger has found it, and writes no other
        end, label = file.tell(), str(epoch).encode()
        row = file.read(len(label) + 1)
        if row and label.startswith(row[: len(label)]) and not row[len(label) :].isdigit():
            file.truncate(end)
