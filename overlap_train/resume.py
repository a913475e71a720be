"""Resuming: after each delivery the training can go on from disk as if it had never been killed (C8).

A checkpoint is the state right after the callbacks of an epoch's end, with the weights that they saw or
set. What ran ahead of it, training and pending validations alike, is done again by the resumed run, from
the same weights, random state and position in the data. The training thread hands each state to a writer
thread; the next one waits until it is written.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from overlap_train.arguments import freeze, require_count, require_path, require_seconds
from overlap_train.callbacks.packing import pack, unpack
from overlap_train.callbacks.rewind import rewind_files
from overlap_train.callbacks.state import CallbackState, capture_all, restore_all
from overlap_train.checkpoint import CheckpointState, CheckpointStore, layout
from overlap_train.data.cursor import Cursor, CursorState
from overlap_train.data.sources import Feed
from overlap_train.errors import CheckpointMismatchError
from overlap_train.snapshot import ModelState, Values

__all__ = ["CheckpointPolicy", "Resumer", "StartPoint", "checkpoint_policy", "fingerprint"]


@dataclass(frozen=True, kw_only=True)
class CheckpointPolicy:
    """Where, when and how many checkpoints are kept; pass it, or the directory alone, as `fit(resume=…)`.

    Attributes:
        directory: of this training alone; made if missing.
        every_epochs: write after so many delivered epochs.
        every_s: write only if so many seconds have passed since the last one; None does not wait.
        keep: how many checkpoints are kept; if the newest is damaged, the one before is used.

    Raises:
        TypeError: for a value of the wrong type.
        ValueError: for a value out of range.
    """

    directory: str | os.PathLike[str]
    every_epochs: int = 1
    every_s: float | None = None
    keep: int = 3

    def __post_init__(self) -> None:
        require_path("directory", self.directory)
        expected = "a number of seconds or None"
        freeze(
            self,
            every_epochs=require_count("every_epochs", self.every_epochs, minimum=1),
            every_s=None
            if self.every_s is None
            else require_seconds("every_s", self.every_s, zero=True, expected=expected),
            keep=require_count("keep", self.keep, minimum=1),
        )


def checkpoint_policy(resume: Any) -> CheckpointPolicy | None:
    """Returns what the argument `resume` of `fit` means.

    Raises:
        TypeError: if it is neither a directory nor a policy nor None.
    """
    if resume is None or isinstance(resume, CheckpointPolicy):
        return resume
    if isinstance(resume, (str, os.PathLike)):
        return CheckpointPolicy(directory=resume)
    raise TypeError(f"resume must be a directory, a CheckpointPolicy or None; got {type(resume).__name__}")


@dataclass(frozen=True)
class StartPoint:
    """Where a resumed training goes on.

    Attributes:
        epoch: the next epoch.
        step: training steps made so far.
        stopped: whether a callback had stopped the training.
        logs: the logs of the last delivered epoch.
        max_lag: how far the training ran ahead when the checkpoint was written.
    """

    epoch: int
    step: int
    stopped: bool
    logs: Mapping[str, float]
    max_lag: int


class Resumer:
    """Writes the checkpoints of one `fit` and starts it from the newest. Belongs to the training thread."""

    def __init__(self, policy: CheckpointPolicy, belongs_to: Mapping[str, str]) -> None:
        """Locks the directory and reads the newest sound checkpoint in it.

        Raises:
            CheckpointError: the directory cannot be used or another training holds it.
            CheckpointCorruptError: there are checkpoints and all are damaged.
            CheckpointMismatchError: the newest sound one belongs to another model, optimizer or data.
        """
        self._policy = policy
        self._fingerprint = dict(belongs_to)
        self._store = CheckpointStore(policy.directory, policy.keep)
        self._store.acquire()
        try:
            self._found = self._store.load_latest(self._fingerprint)
        except BaseException:
            self._store.close()
            raise
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="overlap-checkpoint")
        self._writing: Future[Path] | None = None
        self._deliveries = 0
        self._written_s = time.monotonic()

    @property
    def found(self) -> int | None:
        """The epoch to go on with, counted from 0, or None if there is no checkpoint."""
        return None if self._found is None else self._found.epoch

    def rewind_files(self, callbacks: Iterable[keras.callbacks.Callback]) -> None:
        """Takes the callbacks' files back to the checkpoint; call it before `on_train_begin`."""
        if self._found is not None:
            for callback in callbacks:
                rewind_files(callback, self._found.epoch)

    def start(
        self, state: ModelState, cursor: Cursor, callbacks: Iterable[keras.callbacks.Callback]
    ) -> StartPoint | None:
        """Puts everything back as the checkpoint has it; call it after `on_train_begin`.

        Returns:
            Where to go on, or None if there is no checkpoint.

        Raises:
            CheckpointMismatchError: the callbacks are others than those of the checkpoint.
        """
        found, self._found = self._found, None
        if found is None:
            return None
        states = unpack(found.arrays, found.meta["callbacks"])
        restore_all(callbacks, states)
        state.restore(_stored_values(state, found.arrays))
        cursor.restore(CursorState(**found.meta["cursor"]))
        meta = found.meta
        return StartPoint(found.epoch, found.step, meta["stopped"], meta["logs"], meta["max_lag"])

    def delivered(
        self,
        point: StartPoint,
        values: Values,
        position: CursorState,
        callbacks: Iterable[keras.callbacks.Callback],
        *,
        last: bool,
    ) -> None:
        """Writes a checkpoint if one is due, or if this delivery is the last.

        Raises:
            CheckpointError: an earlier one could not be written.
        """
        self._deliveries += 1
        waited_s = time.monotonic() - self._written_s
        due = self._deliveries % self._policy.every_epochs == 0
        due = due and (self._policy.every_s is None or waited_s >= self._policy.every_s)
        if not due and not last:
            return
        self._written_s = time.monotonic()
        self.wait()
        states = capture_all(callbacks)
        self._writing = self._writer.submit(self._write, point, values, position, states)

    def wait(self) -> None:
        """Waits for the writer, and raises what it raised."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def close(self) -> None:
        """Lets the writer finish and unlocks the directory. Idempotent."""
        self._writer.shutdown(wait=True)
        if self._writing is not None and self._writing.exception() is not None:
            warnings.warn(str(self._writing.exception()), RuntimeWarning, stacklevel=2)
        self._writing = None
        self._store.close()

    def _write(
        self, point: StartPoint, values: Values, position: CursorState, states: tuple[CallbackState, ...]
    ) -> Path:
        arrays, described = pack(states)
        arrays |= {f"variables/{i}": np.asarray(value) for i, value in enumerate(values.flat())}
        meta = {
            "callbacks": described,
            "cursor": asdict(position),
            "stopped": point.stopped,
            "logs": {n: v if isinstance(v, float) else np.asarray(v).tolist() for n, v in point.logs.items()},
            "max_lag": point.max_lag,
        }
        return self._store.save(CheckpointState(point.epoch, point.step, arrays, meta, self._fingerprint))


def fingerprint(model: keras.Model, feed: Feed) -> dict[str, str]:
    """Describes what a checkpoint belongs to: the model's variables, the optimizer and the data."""
    optimizer = model.optimizer
    return {
        "model": layout(model.variables),
        "optimizer": f"{type(optimizer).__name__}\n{layout(optimizer.variables)}",
        "data": feed.describe(),
    }


def _stored_values(state: ModelState, arrays: Mapping[str, Any]) -> Values:
    expected = state.read().flat()
    try:
        flat = [
            tf.convert_to_tensor(arrays[f"variables/{i}"], value.dtype) for i, value in enumerate(expected)
        ]
    except KeyError as error:
        raise CheckpointMismatchError(
            f"the checkpoint has no {error}; the model has {len(expected)} variables and metrics. Compile it "
            "with the same metrics, or give another directory to start afresh."
        ) from error
    for index, (value, wanted) in enumerate(zip(flat, expected, strict=True)):
        if value.shape != wanted.shape:
            raise CheckpointMismatchError(
                f"variable {index} has shape {value.shape} in the checkpoint, {wanted.shape} in this model; "
                "compile it with the same metrics, or give another directory to start afresh"
            )
    return state.pack(flat)
