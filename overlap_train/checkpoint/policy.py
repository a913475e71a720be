"""What a user decides about checkpoints."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from overlap_train.errors import CheckpointError

__all__ = ["CheckpointPolicy", "checkpoint_policy"]


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
        _require_path("directory", self.directory)
        for name, value in (("every_epochs", self.every_epochs), ("keep", self.keep)):
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
                raise TypeError(f"{name} must be an int; got {value!r}")
            if value < 1:
                raise ValueError(f"{name} must be at least 1; got {value}")
            object.__setattr__(self, name, int(value))
        if self.every_s is not None:
            if isinstance(self.every_s, bool) or not isinstance(self.every_s, (int, float, np.number)):
                raise TypeError(f"every_s must be a number of seconds or None; got {self.every_s!r}")
            if not self.every_s >= 0:
                raise ValueError(f"every_s must not be negative; got {self.every_s!r}")


def _require_path(name: str, directory: Any) -> None:
    path = os.fspath(directory) if isinstance(directory, os.PathLike) else directory
    if not isinstance(path, str) or not path:
        raise TypeError(f"{name} must be a path; got {directory!r}")
    try:
        usable = b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        usable = False
    if not usable:
        raise ValueError(f"{name} must be a path that the system can have, without NUL; got {path!r}")


def checkpoint_policy(resume: Any) -> CheckpointPolicy | None:
    """Returns what the argument `resume` of `fit` means, with an absolute directory.

    So it stays where it is though a callback changes the working directory.

    Raises:
        TypeError: if it is neither a directory nor a policy nor None.
        ValueError: if it is no possible path.
        CheckpointError: if it is relative to a working directory that is gone.
    """
    if resume is None:
        return None
    if isinstance(resume, (str, os.PathLike)):
        _require_path("resume", resume)
        resume = CheckpointPolicy(directory=resume)
    if not isinstance(resume, CheckpointPolicy):
        raise TypeError(
            f"resume must be a directory, a CheckpointPolicy or None; got {type(resume).__name__}"
        )
    try:
        return replace(resume, directory=os.path.abspath(resume.directory))
    except OSError as error:
        raise CheckpointError(
            f"resume={os.fspath(resume.directory)!r} is relative, and the working directory is gone "
            f"({error.strerror}). Give an absolute path."
        ) from error
