"""Files that callbacks append to, taken back to where a resumed run goes on."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import keras

__all__ = ["rewind_files"]


def rewind_files(callback: keras.callbacks.Callback, epoch: int) -> None:
    """Makes a callback go on with its file as if the epochs from `epoch` on had never run.

    Call it before `on_train_begin`. Of Keras's callbacks only CSVLogger appends to a file that can be cut:
    its last rows lose those of `epoch` and later, and an unfinished row; rows of an earlier training in the
    same file stay. It is made to append, because otherwise `on_train_begin` would empty the file; `restore`
    puts `append` back to what the user chose. TensorBoard's event files stay: the resumed run begins another,
    and epochs that ran twice are in both.

    Args:
        callback: any callback; those without such a file are left alone.
        epoch: the next epoch to train, counted from 0.

    Raises:
        OSError: the file cannot be read or cut.
    """
    if not isinstance(callback, keras.callbacks.CSVLogger):
        return
    if os.path.exists(callback.filename):
        _cut(callback.filename, epoch, callback.sep)
    callback.append = True


def _cut(path: str, epoch: int, separator: str) -> None:
    with open(path, encoding="utf-8", errors="surrogateescape", newline="") as file:
        rows = list(_rows(file, separator))
    size = rows[-1].end if rows else 0
    above = math.inf
    for row in reversed(rows):
        # The rows of one training ascend; where they do not, those of an earlier one end.
        if row.epoch is None or not epoch <= row.epoch < above:
            break
        size, above = row.start, row.epoch
    os.truncate(path, size)


class _Row(NamedTuple):
    """Where a row lies, in bytes, and its epoch; None for a header."""

    start: int
    end: int
    epoch: int | None


def _rows(file: Iterable[str], separator: str) -> Iterator[_Row]:
    """Yields the finished rows."""
    lines = _CountedLines(file)
    start = 0
    for row in csv.reader(lines, delimiter=separator):
        if not lines.last.endswith(("\n", "\r")):
            return
        yield _Row(start, lines.size_bytes, int(row[0]) if row and row[0].isdecimal() else None)
        start = lines.size_bytes


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
