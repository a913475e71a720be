"""The accounts of a fit as TensorBoard scalars."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from overlap_train._support.arguments import (
    require_count,
    require_instance,
    require_mapping,
    require_path,
    shown,
)
from overlap_train._support.closing import Closing
from overlap_train._support.imports import import_extra
from overlap_train._support.printing import printable
from overlap_train.records import EpochAccount

__all__ = ["AccountWriter"]

_SECONDS = tuple(item.name for item in fields(EpochAccount) if item.name.endswith("_s"))


class AccountWriter(Closing):
    """Write each epoch's seconds, and its validation metrics, as TensorBoard scalars.

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
        self._log_dir = os.fspath(log_dir)
        self._writer: Any = tf.summary.create_file_writer(self._log_dir)

    def write(self, account: EpochAccount, metrics: Mapping[str, Any] | None = None, *, step: int) -> None:
        """Write one epoch and flush it to the file.

        Args:
            account: where the time of the epoch went.
            metrics: validation metrics to write with it. If a metric has several numbers, each has its own
                tag; what is not a number is left out.
            step: the point on TensorBoard's axis: that of the validated epoch, although training has
                continued since.

        Raises:
            TypeError: an argument has the wrong type.
            ValueError: `step` is negative.
            RuntimeError: the writer is closed.
        """
        require_instance("account", account, EpochAccount, optional=False)
        if metrics is not None:
            metrics = require_mapping("metrics", metrics, expected="a mapping of metrics by name")
        step = require_count("step", step, minimum=0)
        if self._writer is None:
            raise RuntimeError(f"the writer to {self._log_dir} is closed; write before close()")
        scalars: dict[str, float] = {}
        for name in _SECONDS:
            scalars |= _scalars(f"account/{name}", getattr(account, name))
        for name, value in (metrics or {}).items():
            scalars |= _scalars(f"validation/{_tag(name)}", value)
        with self._writer.as_default(step=step), self._summary.record_if(True):
            for name, value in scalars.items():
                self._summary.scalar(name, value)
        self._writer.flush()

    def close(self) -> None:
        """Close the event file; does nothing the second time."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def __del__(self) -> None:
        if getattr(self, "_writer", None) is not None:
            self._writer = None  # TensorFlow closes the file when it collects its writer
            warnings.warn(
                f"AccountWriter to {self._log_dir} was not closed", ResourceWarning, stacklevel=2, source=self
            )


def _scalars(tag: str, value: Any) -> dict[str, float]:
    try:
        numbers = np.asarray(value, float)
    except Exception:  # whatever an object of others raises, it is no number
        return {}
    if numbers.size == 1:
        return {tag: float(numbers.ravel()[0])}
    return {f"{tag}/{index}": float(number) for index, number in enumerate(numbers.ravel())}


def _tag(name: Any) -> str:
    """Return a name as TensorFlow takes it: no text may hold half of a character."""
    text = name if isinstance(name, str) else shown(name)
    return printable(text, None)
