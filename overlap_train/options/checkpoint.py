"""Options of checkpoints."""

from __future__ import annotations

import os
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Literal

from overlap_train._support.arguments import freeze, optional, require_choice, require_count, require_seconds
from overlap_train._support.files import require_path

__all__ = ["CheckpointPolicy", "checkpoint_policy"]

_KEPT = ("all", "float16")


@dataclass(frozen=True)
class CheckpointPolicy:
    """Set where and when checkpoints are written; pass it, or only the directory, as `fit(resume=…)`.

    No checkpoint is written inside an epoch while an earlier one waits for its validation. When a fit on
    one host ends at a first Ctrl-C or SIGTERM, a last checkpoint is written of where it stands, unless a
    validation takes more than five seconds to end.

    Attributes:
        directory: a directory for this training alone; made if missing.
        every_epochs: write a checkpoint each time after this number of delivered epochs.
        every_steps: also write inside epochs, each time after this number of training steps; None does not.
        every_s: the least number of seconds between two checkpoints; None sets no limit.
        keep: how many checkpoints are kept; if the newest is damaged, the one before it is used.
        keep_weights: "all" also keeps the weights of each epoch as trained, "float16" the same rounded to
            half the size, except arrays with larger values than that can hold: `evaluate_run` computes
            further metrics from them. With `ValidationPolicy(evaluator=...)` they lie in that directory, are
            not rounded, and are those of validated epochs.

    Raises:
        TypeError: a value has the wrong type.
        ValueError: a value is out of range.
    """

    directory: str | os.PathLike[str]
    _: KW_ONLY
    every_epochs: int = 1
    every_steps: int | None = None
    every_s: float | None = None
    keep: int = 3
    keep_weights: Literal["all", "float16"] | None = None

    def __post_init__(self) -> None:
        require_path("directory", self.directory)
        seconds = {"zero": True, "expected": "a number of seconds or None"}
        steps = {"minimum": 1, "expected": "an integer or None"}
        freeze(
            self,
            every_epochs=require_count("every_epochs", self.every_epochs, minimum=1),
            every_steps=optional(require_count, "every_steps", self.every_steps, **steps),
            every_s=optional(require_seconds, "every_s", self.every_s, **seconds),
            keep=require_count("keep", self.keep, minimum=1),
            keep_weights=optional(require_choice, "keep_weights", self.keep_weights, choices=_KEPT),
        )


def checkpoint_policy(resume: Any) -> CheckpointPolicy:
    """Return what the argument `resume` of `fit` means, with an absolute directory, or raise TypeError.

    So it stays where it is even if a callback changes the working directory.
    """
    if isinstance(resume, (str, os.PathLike)):
        require_path("resume", resume)
        resume = CheckpointPolicy(directory=resume)
    if not isinstance(resume, CheckpointPolicy):
        raise TypeError(
            f"resume must be a directory, a CheckpointPolicy or None; got {type(resume).__name__}"
        )
    return replace(resume, directory=os.path.abspath(resume.directory))
