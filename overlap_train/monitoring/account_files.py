"""The accounts of a fit in files: JSON lines to read while it runs, and what TensorBoard shows."""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

import numpy as np

from overlap_train._support.arguments import (
    require_count,
    require_instance,
    require_mapping,
    require_text,
    text_of,
)
from overlap_train._support.closing import Closing
from overlap_train._support.files import require_path
from overlap_train._support.imports import import_extra
from overlap_train._support.printing import printable
from overlap_train.records import EpochAccount


class AccountLog(Closing):
    """Append one JSON line for each epoch to a file.

    A line holds the fields of `EpochAccount`, epochs counted from 0, and `metrics`. NaN and infinity, which
    JSON lacks, become null. Each line is one write to a file opened for appending, so readers and other
    writers see whole lines, even after a kill.

    Use it from one thread.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open the file for appending; make it, and its folders, if need be.

        If the last line has no end, as after a crash of the machine, the next one still begins a line.

        Raises:
            TypeError: `path` is not a path.
            ValueError: `path` is not a possible path.
            OSError: the file cannot be written.
        """
        self._path = require_path("path", path)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._path.open("ab+", buffering=0)
        if self._path.is_file() and self._file.tell():
            self._file.seek(-1, os.SEEK_END)
            if self._file.read(1) != b"\n":
                self._file.write(b"\n")

    def write(self, account: EpochAccount, metrics: Mapping[str, Any] | None = None) -> None:
        """Append one epoch; it is in the file when the call returns.

        Args:
            account: where the time of the epoch went.
            metrics: metrics by name. Arrays become lists, and what is not a number becomes text.

        Raises:
            TypeError: an argument has the wrong type.
            RuntimeError: the log is closed.
            OSError: the line cannot be written, for example because the disk is full; the file is unchanged.
        """
        require_instance("account", account, EpochAccount, optional=False)
        if metrics is not None:
            metrics = require_mapping("metrics", metrics, expected="a mapping of metrics by name")
        if self._file.closed:
            raise RuntimeError(f"{self._path} is closed; write to it before close()")
        record: dict[str, Any] = {key: _json(value) for key, value in asdict(account).items()}
        record["metrics"] = {text_of(name): _json(value) for name, value in (metrics or {}).items()}
        line = (json.dumps(record, allow_nan=False) + "\n").encode()
        count = self._file.write(line)
        if count != len(line):
            self._file.truncate(self._file.tell() - count)
            raise OSError(f"only {count} of {len(line)} bytes could be written to {self._path}: disk full?")

    def close(self) -> None:
        """Close the file; does nothing the second time."""
        self._file.close()


def _json(value: Any) -> Any:
    """Return a value as JSON can hold it: numbers, lists of numbers, or else text."""
    if value is None or isinstance(value, (int, str)):
        return value
    try:
        numbers = np.asarray(value, float)
    except Exception:  # a custom object may raise anything
        return text_of(value)
    return np.where(np.isfinite(numbers), numbers, np.array(None)).tolist()


_SECONDS = tuple(item.name for item in fields(EpochAccount) if item.name.endswith("_s"))


class AccountWriter(Closing):
    """Write each epoch's seconds and validation metrics as TensorBoard scalars, and a timeline as an image.

    The seconds are called `account/trained_s` and so on, the metrics `validation/<name>`. The calling
    thread's default summary writer, default step and `record_if` are neither used nor changed. TensorFlow is
    imported on construction.

    Use it from one thread.
    """

    def __init__(self, log_dir: str | os.PathLike[str]) -> None:
        """Make the folder and its event file.

        Raises:
            TypeError: `log_dir` is not a path.
            ValueError: `log_dir` is not a possible path.
            ModuleNotFoundError: TensorBoard is not installed; TensorFlow's summaries need it.
            OSError: `log_dir` cannot be made.
        """
        log_dir = require_path("log_dir", log_dir)
        import_extra("tensorboard", purpose="AccountWriter")
        import tensorflow as tf

        os.makedirs(log_dir, exist_ok=True)
        self._summary: Any = tf.summary
        self._decode: Any = tf.io.decode_png
        self._log_dir = os.fspath(log_dir)
        self._writer: Any = tf.summary.create_file_writer(self._log_dir)

    def write(self, account: EpochAccount, metrics: Mapping[str, Any] | None = None, *, step: int) -> None:
        """Write one epoch and flush it to the file.

        Args:
            account: where the time of the epoch went.
            metrics: validation metrics to write with it. If a metric has several numbers, each has its own
                tag; what is not a number is left out.
            step: the point on TensorBoard's axis: that of the validated epoch, although training has gone on
                since.

        Raises:
            TypeError: an argument has the wrong type.
            ValueError: `step` is negative.
            RuntimeError: the writer is closed.
        """
        require_instance("account", account, EpochAccount, optional=False)
        if metrics is not None:
            metrics = require_mapping("metrics", metrics, expected="a mapping of metrics by name")
        step = require_count("step", step, minimum=0)
        scalars: dict[str, float] = {}
        for name in _SECONDS:
            scalars |= _scalars(f"account/{name}", getattr(account, name))
        for name, value in (metrics or {}).items():
            tag = printable(text_of(name), None)  # TensorFlow takes no lone surrogates
            scalars |= _scalars(f"validation/{tag}", value)
        with self._open(step):
            for name, value in scalars.items():
                self._summary.scalar(name, value)

    def write_picture(self, path: str | os.PathLike[str], *, step: int, name: str = "timeline") -> None:
        """Write a picture, such as that of `save_timeline`, and flush it to the file.

        Args:
            path: a PNG file.
            step: the point on TensorBoard's axis, such as the number of epochs.
            name: the image's tag.

        Raises:
            TypeError: an argument has the wrong type.
            ValueError: `step` is negative, or the file is no PNG.
            OSError: the file cannot be read.
            RuntimeError: the writer is closed.
        """
        path, name = require_path("path", path), require_text("name", name)
        step = require_count("step", step, minimum=0)
        picture = path.read_bytes()
        if not picture.startswith(b"\x89PNG"):
            raise ValueError(f"{path} is no PNG; pass one, as save_timeline('timeline.png', ...) writes it")
        with self._open(step):
            self._summary.image(name, self._decode(picture)[None])

    def close(self) -> None:
        """Close the event file; does nothing the second time."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _open(self, step: int) -> contextlib.ExitStack:
        """Let summaries go to this file, which has them at the end."""
        if self._writer is None:
            raise RuntimeError(f"the writer to {self._log_dir} is closed; write before close()")
        stack = contextlib.ExitStack()
        stack.callback(self._writer.flush)
        stack.enter_context(self._writer.as_default(step=step))
        stack.enter_context(self._summary.record_if(True))
        return stack

    def __del__(self) -> None:
        if getattr(self, "_writer", None) is not None:
            self._writer = None  # TensorFlow closes the file when it collects its writer
            warnings.warn(
                f"AccountWriter to {self._log_dir} was not closed", ResourceWarning, stacklevel=2, source=self
            )


def _scalars(tag: str, value: Any) -> dict[str, float]:
    try:
        numbers = np.asarray(value, float)
    except Exception:  # a custom object may raise anything
        return {}
    if numbers.size == 1:
        return {tag: float(numbers.ravel()[0])}
    return {f"{tag}/{index}": float(number) for index, number in enumerate(numbers.ravel())}
