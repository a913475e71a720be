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
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import keras

from overlap_train._support.arguments import is_count
from overlap_train._support.files import open_regular
from overlap_train.errors import CheckpointCorruptError

__all__ = [
    "FileMark",
    "append_to_files",
    "files_of",
    "mark_files",
    "read_marks",
    "rewind_files",
    "sync_files",
]

# So many bytes before the mark tell a log from another one; files are read in pieces of this size.
_TAIL_BYTES = 1 << 16
_LARGEST_INTEGER = 2**64 - 1


@dataclass(frozen=True)
class FileMark:
    """How far a callback had written its file."""

    number: int  # of the callback among those of its class
    path: str  # absolute
    device: int
    inode: int
    size_bytes: int  # up to the mark
    tail_sha256: str  # of the last bytes before the mark


def files_of(callbacks: Iterable[keras.callbacks.Callback]) -> dict[int, str]:
    """Return the absolute paths of the files that callbacks append to, by the number of the callback.

    Of Keras's callbacks only CSVLogger appends to a file that can be cut. TensorBoard's event files stay: the
    resumed run begins another, and epochs that ran twice are in both.
    """
    names = [callback.filename for callback in _loggers(callbacks)]
    return {n: os.path.abspath(name) for n, name in enumerate(names) if "://" not in name}


def mark_files(paths: dict[int, str]) -> tuple[FileMark, ...]:
    """Mark the present ends of files; those that cannot be read as regular files are left out."""
    marks = []
    for number, path in paths.items():
        with suppress(OSError, _Other), _opened(path, os.O_RDONLY) as file:
            status = os.fstat(file.fileno())
            tail = _tail_sha256(file, status.st_size)
            marks.append(FileMark(number, path, status.st_dev, status.st_ino, status.st_size, tail))
    return tuple(marks)


def sync_files(marks: Iterable[FileMark]) -> None:
    """Make marked files durable, so that no checkpoint says more of them than a power cut leaves."""
    for mark in marks:
        with suppress(OSError, _Other), _opened(mark.path, os.O_RDONLY) as file:
            os.fsync(file.fileno())


def read_marks(described: Sequence[Any]) -> tuple[FileMark, ...]:
    """Return marks from the JSON of a checkpoint, each of them what `dataclasses.asdict` made of one."""
    marks = []
    for entry in described:
        try:
            mark = FileMark(**entry)
        except TypeError as error:
            raise CheckpointCorruptError(f"its mark of a log is invalid ({error!s:.160})") from error
        numbers = (mark.number, mark.device, mark.inode, mark.size_bytes)
        counts = all(is_count(number, _LARGEST_INTEGER) for number in numbers)
        if not counts or not isinstance(mark.path, str) or not isinstance(mark.tail_sha256, str):
            raise CheckpointCorruptError(f"its mark of a log is invalid ({reprlib.repr(entry)})")
        marks.append(mark)
    return tuple(marks)


def append_to_files(
    callbacks: Iterable[keras.callbacks.Callback],
) -> list[keras.callbacks.CSVLogger]:
    """Have callbacks go on with their files; call it before `on_train_begin`.

    A CSVLogger would otherwise empty its file there. Returns the loggers that would not have appended;
    `restore` puts `append` back to what the user chose.
    """
    changed = [logger for logger in _loggers(callbacks) if not logger.append]
    for logger in changed:
        logger.append = True
    return changed


def rewind_files(
    callbacks: Iterable[keras.callbacks.Callback], marks: Iterable[FileMark], epoch: int
) -> None:
    """Take the files of callbacks back to before the epochs from `epoch` on, which run again.

    Call it when nothing can be refused any more. That is behind `on_train_begin`: what a CSVLogger has opened
    to append to may be cut. An OSError says that a file of this training cannot be.
    """
    loggers = _loggers(callbacks)
    paths, marks = files_of(loggers), list(marks)
    at, numbered = {mark.path: mark for mark in marks}, {mark.number: mark for mark in marks}
    for number, path in paths.items():
        mark = at.get(path, numbered.get(number))
        if mark is not None:
            with suppress(_Other):
                _cut(path, mark, epoch, loggers[number].sep)


def _loggers(callbacks: Iterable[keras.callbacks.Callback]) -> list[keras.callbacks.CSVLogger]:
    return [callback for callback in callbacks if isinstance(callback, keras.callbacks.CSVLogger)]


class _Other(Exception):
    """What lies at a path is no regular file that can be used, or not the one that was marked."""


def _opened(path: str, flags: int) -> io.FileIO:
    """Open a regular file and wait for nobody: a pipe would wait for its other end."""
    try:
        descriptor = open_regular(path, flags, follow_links=True)
    except OSError as error:  # the callback opens it too, and says what is wrong with it
        raise _Other from error
    return io.FileIO(descriptor, "r+" if flags & os.O_RDWR else "r")


def _tail_sha256(file: io.FileIO, size_bytes: int) -> str:
    """Return the digest of the last bytes before a place in a file."""
    start = max(0, size_bytes - _TAIL_BYTES)
    return hashlib.sha256(os.pread(file.fileno(), size_bytes - start, start)).hexdigest()


def _cut(path: str, mark: FileMark, epoch: int, separator: str) -> None:
    """Cut out the rows after a mark that are of the training that set it; what follows them moves up.

    The names of the columns, which come with the first row, stay: the CSVLogger has seen them.
    """
    with _opened(path, os.O_RDWR) as file:
        _require_marked(file, path, mark)
        kept = mark.size_bytes or _header_bytes(file, separator)
        end = kept + _own_bytes(file, kept, epoch, separator)
        while end > kept and (foreign := os.pread(file.fileno(), _TAIL_BYTES, end)):
            os.pwrite(file.fileno(), foreign, kept)
            kept, end = kept + len(foreign), end + len(foreign)
        if end > kept:
            os.ftruncate(file.fileno(), kept)


def _require_marked(file: io.FileIO, path: str, mark: FileMark) -> None:
    """Raise `_Other` unless the file is the marked one, by its place and by what is in it."""
    status = os.fstat(file.fileno())
    same_file = (status.st_dev, status.st_ino) == (mark.device, mark.inode)
    # Of a log that was empty nothing but its place in the file system can tell.
    if not (same_file or (mark.size_bytes > 0 and _same_path(path, mark.path))):
        raise _Other
    if status.st_size < mark.size_bytes or _tail_sha256(file, mark.size_bytes) != mark.tail_sha256:
        raise _Other


def _same_path(path: str, marked: str) -> bool:
    """Tell whether two paths lead to one file; what this system cannot name is no file of it."""
    try:
        return os.path.realpath(path) == os.path.realpath(marked)
    except ValueError:  # a null character, or one that the encoding of file names does not have
        return False


def _header_bytes(file: io.FileIO, separator: str) -> int:
    """Return the bytes of the line with the names of the columns, if a file begins with one."""
    with suppress(csv.Error):
        for row in _rows(_text(file, 0), separator):
            return row.end if row.first == "epoch" and row.finished else 0
    return 0


def _own_bytes(file: io.FileIO, start: int, epoch: int, separator: str) -> int:
    """Return the bytes from `start` on that hold the rows of `epoch` and the epochs right after it."""
    own = 0
    with suppress(csv.Error):  # no text of ours
        for row in _rows(_text(file, start), separator):
            begun = not row.finished and str(epoch).startswith(row.first)
            if row.first != str(epoch) and not begun:
                break
            own, epoch = row.end, epoch + 1
    return own


def _text(file: io.FileIO, start: int) -> io.TextIOWrapper:
    file.seek(start)
    return io.TextIOWrapper(_Shared(file), encoding="utf-8", errors="surrogateescape", newline="")


class _Shared(io.BufferedReader):
    """Reads a file that stays open when the reader goes."""

    def __init__(self, file: io.FileIO) -> None:
        super().__init__(io.FileIO(file.fileno(), closefd=False))


class _Row(NamedTuple):
    """Where a row ends, in bytes, its first field, and whether it was written to its end."""

    end: int
    first: str
    finished: bool


def _rows(file: Iterable[str], separator: str) -> Iterator[_Row]:
    lines = _CountedLines(file)
    for row in csv.reader(lines, delimiter=separator):
        finished = lines.last.endswith(("\n", "\r"))
        yield _Row(lines.size_bytes, row[0] if row else "", finished)


class _CountedLines(Iterator[str]):
    """Counts the bytes of the lines that the reader has taken; a row may span several."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines = iter(lines)
        self.size_bytes = 0
        self.last = ""

    def __next__(self) -> str:
        self.last = next(self._lines)
        self.size_bytes += len(self.last.encode("utf-8", "surrogateescape"))
        return self.last
