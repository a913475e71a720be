"""Options of the validation."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from overlap_train._support.arguments import (
    freeze,
    optional,
    require_choice,
    require_count,
    require_flag,
    require_seconds,
    short_repr,
)
from overlap_train._support.files import require_path
from overlap_train._support.fit_arguments import epoch_selector
from overlap_train.options.functions import EvaluationFunction, require_functions
from overlap_train.options.threads import available_cores

__all__ = ["EvaluatorPolicy", "ValidationPolicy", "ValidationSet"]

_OVERLAPS = ("auto", "always", "require")
_BACKLOGS = ("block", "latest")
_ON_CHANGE = ("rollback", "continue")
_ON_ERROR = ("raise", "warn")
_DEVICE = re.compile(r"(/?job:\w+)?(/replica:\d+)?(/task:\d+)?/?(device:)?[A-Za-z_]+(:\d{1,9})?")
_MOST_WORKERS = 4096
_SECONDS = "a number of seconds or None"
_COUNT: Mapping[str, Any] = {"minimum": 1, "expected": "an integer or None"}
_SKIPPED = 8  # epochs without a validation that may wait for an older one to be delivered


@dataclass(frozen=True)
class EvaluatorPolicy:
    """Set how a training and its evaluator meet; pass it, or only the directory, as `evaluator`.

    Attributes:
        directory: a directory for this training alone, which the training and the process that calls
            `parallel.evaluate_run` both see; made if missing. It may be that of `fit(resume=...)`.
        keep_weights: whether the weights of all validated epochs stay there, so that `evaluate_run` can
            evaluate them again later. Otherwise they are deleted when the result of their epoch has come.
        wait_s: seconds that a validation waits while the evaluator gives no sign of life, before it has been
            started or after it was lost. Then the validation fails, and `on_error` decides.

    Raises:
        TypeError: a value has the wrong type.
        ValueError: a value is out of range.
    """

    directory: str | os.PathLike[str]
    _: KW_ONLY
    keep_weights: bool = False
    wait_s: float = 600.0

    def __post_init__(self) -> None:
        require_path("directory", self.directory)
        freeze(
            self,
            keep_weights=require_flag("keep_weights", self.keep_weights),
            wait_s=require_seconds("wait_s", self.wait_s, zero=True),
        )


@dataclass(frozen=True, kw_only=True)
class ValidationPolicy:
    """Set how the validation runs during the training.

    Attributes:
        workers: number of validation threads; each evaluates a part of the validation set. None means two,
            or one on a single core. During training on the CPU only as many begin as the training leaves
            cores idle, at least one. While the training waits for them, all begin. Instead of a number, the
            name of each worker's device: `("GPU:1",)` is one worker on another GPU. Without names, the
            workers use the replicas of a strategy in turn, or leave the placement to TensorFlow.
        max_lag: how many later epochs may have begun when the callbacks of an epoch get its result. 0
            validates in step, as `keras.Model.fit` does.
        overlap: `"auto"` validates in step where overlapping would not pay: where validation and training
            share the cores, the training leaves less than half a core idle, and its batches are not split
            or come from a pipeline. `"always"` overlaps there, too. So does `"require"`, and `fit` raises an
            `errors.OverlapError` with all reasons rather than wait for validations: before it begins, or as
            soon as a reason is found. `"auto"` overlaps there, too, with `backlog="latest"`.
        backlog: what happens at the end of an epoch while `max_lag` validations (at least one) are under
            way. `"block"` waits. `"latest"` drops the validations that have not begun, for this epoch's. An
            epoch without its validation has no `val_` values in its logs; the last epoch is always
            validated. At most `max_snapshots` snapshots are alive; then training waits, whatever the backlog.
        on_change: what happens when a callback has changed the training. `"rollback"` goes back to the
            snapshot that the callback saw, so that the result is that of a synchronous run. `"continue"`
            accepts the lag and applies the change to the current weights.
        on_error: what happens when a worker fails. `"raise"` ends the training. `"warn"` leaves the epoch
            without its validation.
        timeout_s: seconds that the training waits for one validation before it raises, and for the first
            batches of its data. None waits for ever. While it is set, the first batches are drawn on a
            thread of their own.
        functions: evaluation functions by name, such as `{"bleu": fn}`. Each is called with a model of a
            snapshot's weights, and what it returns is in the epoch's logs as `val_bleu`. A value may be an
            `EvaluationFunction`, which has options.
        every_steps: also validate inside epochs, each time after this number of training steps. The results
            are in `Trainer.step_validations`, and go to callbacks that have a method
            `on_step_validation(step, logs)`. None does not.
        keep_bytes: up to this size, prepared validation batches of a dataset are kept in memory, and so are
            training batches that cannot be read again (from Python, or from a pipeline with a state), to be
            trained again after a rollback. If the latter take more, training waits for validations. 0 keeps
            none: then such data is validated in step wherever a callback may change the training.
        evaluator: a directory, or an `EvaluatorPolicy`: the training validates nothing itself. It writes its
            weights there, and takes the results that a process with `parallel.evaluate_run` writes. Of
            `validation_data` and `functions` only the names and frequencies count then; without any, all
            results of the evaluator are taken. None validates here.

    Raises:
        TypeError: a value has the wrong type.
        ValueError: a value is out of range.
    """

    workers: int | Sequence[str] | None = None
    max_lag: int = 1
    overlap: str = "auto"
    backlog: str = "block"
    on_change: str = "rollback"
    on_error: str = "raise"
    timeout_s: float | None = None
    functions: Mapping[str, Callable[[Any], Any] | EvaluationFunction] | None = field(
        default=None, hash=False
    )
    every_steps: int | None = None
    keep_bytes: int = 1 << 30
    evaluator: str | os.PathLike[str] | EvaluatorPolicy | None = None

    def __post_init__(self) -> None:
        freeze(
            self,
            workers=_workers(self.workers),
            max_lag=require_count("max_lag", self.max_lag, minimum=0),
            overlap=require_choice("overlap", self.overlap, _OVERLAPS),
            backlog=require_choice("backlog", self.backlog, _BACKLOGS),
            on_change=require_choice("on_change", self.on_change, _ON_CHANGE),
            on_error=require_choice("on_error", self.on_error, _ON_ERROR),
            timeout_s=optional(require_seconds, "timeout_s", self.timeout_s, expected=_SECONDS),
            functions={} if self.functions is None else require_functions("functions", self.functions),
            every_steps=optional(require_count, "every_steps", self.every_steps, **_COUNT),
            keep_bytes=require_count("keep_bytes", self.keep_bytes, minimum=0),
            evaluator=_evaluator_or_none(self.evaluator),
        )

        if self.overlap == "require" and self.max_lag == 0:
            raise ValueError("overlap='require' needs a max_lag of at least 1; got max_lag=0")

    @property
    def resolved_workers(self) -> int:
        """The number of workers, also where `workers` is None."""
        if self.workers is None:
            return min(2, available_cores())
        return self.workers if isinstance(self.workers, int) else len(self.workers)

    @property
    def devices(self) -> Sequence[str]:
        """The device of each worker; empty where `workers` does not name them."""
        return self.workers if isinstance(self.workers, tuple) else ()

    @property
    def max_snapshots(self) -> int:
        """The largest number of snapshots of epochs' ends that are alive at the same time."""
        return self.max_lag + (1 if self.backlog == "block" else 1 + _SKIPPED)


@dataclass(frozen=True)
class ValidationSet:
    """Describe one of several sets of `fit(validation_data={"clean": ..., "noisy": ValidationSet(...)})`.

    Attributes:
        data: what `keras.Model.fit` takes as `validation_data`.
        freq: like `validation_freq`, for this set: every how many epochs, or a list of epochs from 1.
        steps: like `validation_steps`, for this set: the number of batches; None means all.
        batch_size: like `validation_batch_size`, for this set: rows in a batch.
        concurrent: whether its batches may be drawn while the training goes on, even from a source that the
            training uses, too. By default such batches are all drawn first, as by Keras, and evaluated while
            the training continues.

    Raises:
        TypeError: a value has the wrong type.
        ValueError: a value is out of range.
    """

    data: Any
    _: KW_ONLY
    freq: int | Sequence[int] = 1
    steps: int | None = None
    batch_size: int | None = None
    concurrent: bool = False

    def __post_init__(self) -> None:
        epoch_selector(self.freq, name="freq")
        freeze(
            self,
            freq=self.freq if isinstance(self.freq, Sequence) else int(self.freq),
            steps=optional(require_count, "steps", self.steps, **_COUNT),
            batch_size=optional(require_count, "batch_size", self.batch_size, **_COUNT),
            concurrent=require_flag("concurrent", self.concurrent),
        )


def _evaluator_or_none(value: Any) -> EvaluatorPolicy | None:
    if value is None or isinstance(value, EvaluatorPolicy):
        return value
    require_path("evaluator", value)
    return EvaluatorPolicy(value)


def _workers(value: Any) -> int | tuple[str, ...] | None:
    """Return the number of workers, or the names of their devices."""
    if value is None:
        return None
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        expected = "an integer, a sequence of devices such as ('GPU:1',), or None"
        return require_count("workers", value, minimum=1, maximum=_MOST_WORKERS, expected=expected)
    if not value:
        raise ValueError("workers is empty; name at least one device, or pass None")
    for name in value:
        if not isinstance(name, str) or not _DEVICE.fullmatch(name):
            raise ValueError(
                f"workers must be a number or names of devices such as 'GPU:1'; got {short_repr(name)}"
            )
    return tuple(map(str, value))
