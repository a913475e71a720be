"""Files that callbacks append to, taken back to where a resumed run goes on.

A checkpoint marks how far the training had written each of its CSV logs. When the training goes on, the rows
that it wrote after the mark are cut out, because their epochs run again. Nothing else is: not a log that
another training wrote, nor rows that another one appended since. Only regular files are read or cut, and
none before all else has been put back: a training that is refused leaves its logs as they were.
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
import reprlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO

import keras

from overlap_train._support.files import open_regular
from overlap_train.errors import CheckpointCorruptError

# Bytes before the mark by which a log is recognised.
_TAIL_BYTES = 1 << 16


@dataclass(frozen=True)
class FileMark:
    """How far a callback had written its file."""

    number: int  # of the callback among those of its class
    path: str  # absolute
    device: int
    inode: int
    size_bytes: int  # up to the mark
    tail_sha256: str  # of the last bytes before the mark


_KINDS = [int, str, int, int, int, str]


def files_of(callbacks: Iterable[keras.callbacks.Callback]) -> dict[int, str]:
    """Return the absolute paths of the files that callbacks append to, by the number of the callback.

    TensorBoard's event files stay: the resumed run begins another, and epochs that ran twice are in both.
    """
    names = [callback.filename for callback in _loggers(callbacks)]
    return {n: os.path.abspath(name) for n, name in enumerate(names) if "://" not in name}


def mark_files(paths: dict[int, str]) -> tuple[FileMark, ...]:
    """Mark the present ends of files; those that cannot be read as regular files are left out."""
    marks = []
    for number, path in paths.items():
        with suppress(OSError), _open(path) as file:
            status = os.fstat(file.fileno())
            tail = _tail_sha256(file, status.st_size)
            marks.append(FileMark(number, path, status.st_dev, status.st_ino, status.st_size, tail))
    return tuple(marks)


def sync_files(marks: Iterable[FileMark]) -> None:
    """Make marked files durable, so that no checkpoint says more of them than a power cut leaves."""
    for mark in marks:
        with suppress(OSError), _open(mark.path) as file:
            os.fsync(file.fileno())


def read_marks(described: Sequence[Any]) -> tuple[FileMark, ...]:
    """Return marks from the JSON of a checkpoint, each of them what `dataclasses.asdict` made of one."""
    try:
        marks = tuple(FileMark(**entry) for entry in described)
    except TypeError as error:
        raise CheckpointCorruptError(f"its mark of a log is invalid ({error!s:.160})") from error
    for mark in marks:
        if [type(value) for value in asdict(mark).values()] != _KINDS or mark.size_bytes < 0:
            raise CheckpointCorruptError(f"its mark of a log is invalid ({reprlib.repr(mark)})")
    return marks


def append_to_files(
    callbacks: Iterable[keras.callbacks.Callback],
) -> list[keras.callbacks.CSVLogger]:
    """Have CSVLoggers go on with files that `on_train_begin` would empty; return those that are changed."""
    changed = [logger for logger in _loggers(callbacks) if not logger.append]
    for logger in changed:
        logger.append = True
    return changed


def rewind_files(
    callbacks: Iterable[keras.callbacks.Callback], marks: Iterable[FileMark], epoch: int
) -> None:
    """Take the files of callbacks back to before the epochs from `epoch` on, which run again.

    Call it behind `on_train_begin`, when nothing can be refused any more. A file that cannot be cut is an
    OSError.
    """
    loggers, marks = _loggers(callbacks), list(marks)
    by_path, by_number = {mark.path: mark for mark in marks}, {mark.number: mark for mark in marks}
    for number, path in files_of(loggers).items():
        mark = by_path.get(path, by_number.get(number))
        if mark is not None:
            _cut(path, mark, epoch, loggers[number].sep)


def _loggers(callbacks: Iterable[keras.callbacks.Callback]) -> list[keras.callbacks.CSVLogger]:
    return [callback for callback in callbacks if isinstance(callback, keras.callbacks.CSVLogger)]


def _open(path: str, *, write: bool = False) -> BinaryIO:
    """Open a regular file, without waiting as for the other end of a pipe."""
    descriptor = open_regular(path, os.O_RDWR if write else os.O_RDONLY, follow_links=True)
    return open(descriptor, "r+b" if write else "rb")


def _tail_sha256(file: BinaryIO, size_bytes: int) -> str:
    """Return the digest of the last bytes before a place in a file."""
    start = max(0, size_bytes - _TAIL_BYTES)
    return hashlib.sha256(os.pread(file.fileno(), size_bytes - start, start)).hexdigest()


def _cut(path: str, mark: FileMark, epoch: int, separator: str) -> None:
    """Cut out the rows after a mark that are of the training that set it, but not the columns' names."""
    try:
        file = _open(path, write=True)
    except OSError:  # the callback opens it too, and says what is wrong with it
        return
    with file:
        if not _is_marked(file, path, mark):
            return
        file.seek(mark.size_bytes)
        since = file.read().decode("utf-8", "surrogateescape")
        start = 0 if mark.size_bytes else _header_length(since, separator)
        end = start + _rows_length(since[start:], epoch, separator)
        if end > start:
            file.seek(mark.size_bytes)
            file.write((since[:start] + since[end:]).encode("utf-8", "surrogateescape"))
            file.truncate()


def _is_marked(file: BinaryIO, path: str, mark: FileMark) -> bool:
    """Whether a file is the marked one, by its place and by its content."""
    status = os.fstat(file.fileno())
    same_file = (status.st_dev, status.st_ino) == (mark.device, mark.inode)
    # A log that was empty can be recognised only by its place in the file system.
    if not (same_file or (mark.size_bytes > 0 and _same_path(path, mark.path))):
        return False
    return status.st_size >= mark.size_bytes and _tail_sha256(file, mark.size_bytes) == mark.tail_sha256


def _same_path(path: str, other: str) -> bool:
    """Whether two paths lead to one file; a path that this system cannot have leads to none."""
    try:
        return os.path.realpath(path) == os.path.realpath(other)
    except ValueError:  # a null character, or one that the encoding of file names does not have
        return False


def _header_length(text: str, separator: str) -> int:
    """Return the length of the line with the names of the columns, if a text begins with one."""
    rows = csv.reader(lines := io.StringIO(text, newline=""), delimiter=separator)
    with suppress(csv.Error):
        if next(rows, [""])[:1] == ["epoch"] and _ends_line(text, lines.tell()):
            return lines.tell()
    return 0


def _rows_length(text: str, epoch: int, separator: str) -> int:
    """Return the length of the rows of `epoch` and the epochs right after it, at the beginning of a text."""
    rows = csv.reader(lines := io.StringIO(text, newline=""), delimiter=separator)
    length = 0
    with suppress(csv.Error):  # no text of a CSVLogger
        for row in rows:
            first = row[0] if row else ""
            half_written = not _ends_line(text, lines.tell()) and str(epoch).startswith(first)
            if first != str(epoch) and not half_written:
                break
            length, epoch = lines.tell(), epoch + 1
    return length


def _ends_line(text: str, length: int) -> bool:
    return text[length - 1 : length] in ("\n", "\r")
