"""Reporting to Ray Train, whose `report` waits for all workers: it is called on all hosts of a training."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras

from overlap_train._support.files import require_path
from overlap_train._support.printing import is_number

_CHECKPOINTS = "ckpt-*.otck"  # and not one that is being written


class RayReport(keras.callbacks.Callback):  # type: ignore[misc]  # Keras is untyped
    """Report each delivered epoch to Ray Train (extra `ray`), with the newest checkpoint.

    Make it on every worker before `fit`. After Ray has restarted the workers, this puts the last reported
    checkpoint into `resume`, so the workers need not share that directory. A checkpoint is written after the
    delivery of its epoch, so Ray gets it with the next epoch.

    Args:
        resume: the directory passed to `fit(resume=...)`; None reports metrics only.

    Raises:
        TypeError: `resume` is not a path.
        ImportError: Ray Train is not installed.
    """

    on_all_hosts = True
    overlap_safe = True

    def __init__(self, resume: str | os.PathLike[str] | None = None) -> None:
        super().__init__()
        import ray.train

        if resume is not None:
            require_path("resume", resume)
        self._ray = ray.train
        self._is_chief = ray.train.get_context().get_world_rank() == 0
        self._directory = None if resume is None else Path(resume)
        self._reported = ""
        if self._is_chief and self._directory is not None:
            self._fetch(self._directory)

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Report an epoch; called by Keras, or on each host when the epoch is delivered."""
        metrics = {name: float(value) for name, value in (logs or {}).items() if is_number(value)}
        with contextlib.ExitStack() as resources:
            self._ray.report({"epoch": epoch, **metrics}, checkpoint=self._newest(resources))

    def get_state(self) -> dict[str, Any]:
        """Return nothing to keep: directory and reports are of this run of the workers."""
        return {}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Put nothing back."""

    def _newest(self, resources: contextlib.ExitStack) -> Any:
        """Return the newest checkpoint for Ray, once; None where there is none, or on another host."""
        if not self._is_chief or self._directory is None:
            return None
        newest = max(self._directory.glob(_CHECKPOINTS), default=None)
        if newest is None or newest.name == self._reported:
            return None
        directory = resources.enter_context(tempfile.TemporaryDirectory(prefix="overlap_train_ray_"))
        shutil.copy2(newest, directory)
        self._reported = newest.name
        return self._ray.Checkpoint.from_directory(directory)

    def _fetch(self, directory: Path) -> None:
        """Lay the checkpoint that Ray has kept where `resume` finds it, unless it is there."""
        checkpoint = self._ray.get_checkpoint()
        if checkpoint is None:
            return
        directory.mkdir(parents=True, exist_ok=True)
        with checkpoint.as_directory() as kept:
            for source in Path(kept).glob(_CHECKPOINTS):
                self._reported = source.name
                if not (directory / source.name).exists():
                    partial = directory / f".{source.name}.partial"
                    shutil.copy2(source, partial)
                    partial.replace(directory / source.name)
