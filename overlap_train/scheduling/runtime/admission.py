"""What has been accepted and has not begun: bounded queues, one for each model, and batching.

Owned by the scheduler's lock.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from overlap_train._support.arguments import freeze, require_count, require_real
from overlap_train.scheduling.graph.layers import LayerGraph
from overlap_train.scheduling.runtime.accounts import ModelAccount

__all__ = ["Limits", "Model", "Submission", "Waiting"]


@dataclass(frozen=True)
class Limits:
    """How much runs and waits at the same time; see `MultiModelScheduler` for the fields."""

    max_active: int | None
    max_batch: int
    max_pending: int
    aging_s: float

    def __post_init__(self) -> None:
        active = self.max_active
        freeze(
            self,
            max_active=None if active is None else require_count("max_active", active, minimum=1),
            max_batch=require_count("max_batch", self.max_batch, minimum=1),
            max_pending=require_count("max_pending", self.max_pending, minimum=1),
            aging_s=require_real("aging_s", self.aging_s, minimum=0),
        )


@dataclass(eq=False)
class Submission:
    """One call of `submit`."""

    model: Model
    inputs: tuple[Any, ...]  # flat arrays with the batch first; None for one that is left out
    examples: int
    future: Future[Any]
    arrival_s: float  # of `time.monotonic()`, as is the deadline
    priority: int = 0
    deadline_s: float | None = None

    def urgency_s(self, aging_s: float) -> float:
        """As `requests.urgency`, with nothing known of how long it will take."""
        rank_s = self.arrival_s - self.priority * aging_s
        return rank_s if self.deadline_s is None else min(rank_s, self.deadline_s - aging_s)


@dataclass(eq=False)
class Model:
    """A model in service."""

    name: str
    graph: LayerGraph
    flatten: Callable[[Any], tuple[Any, ...]]
    pack: Callable[[tuple[Any, ...]], Any]
    max_pending: int = 64
    max_batch: int = 1
    waiting: list[Submission] = field(default_factory=list)
    account: ModelAccount = field(default_factory=ModelAccount)
    running: int = 0
    removed: bool = False

    def take_waiting(self) -> list[Submission]:
        """Take out everything that waits."""
        taken, self.waiting = self.waiting, []
        return taken


class Waiting:
    """All submissions that wait, by model, for `lanes` batches that can be computed at the same time."""

    def __init__(self, aging_s: float, lanes: int = 1) -> None:
        self.models: dict[str, Model] = {}
        self._aging_s = aging_s
        self._lanes = lanes

    def __len__(self) -> int:
        return sum(len(model.waiting) for model in self.models.values())

    def next_batch(self) -> list[Submission]:
        """Take out the most urgent submission and those of its model that can run with it.

        They are joined in order of urgency while their shapes agree beyond the batch and their
        examples are together at most `max_batch`, and at most each lane's part of what waits, so that
        no lane is left without work at the end (guided self-scheduling, Polychronopoulos and Kuck
        1987). Empty if nothing waits.
        """
        waiting = [model for model in self.models.values() if model.waiting]
        if not waiting:
            return []
        first = min((s for model in waiting for s in model.waiting), key=self._rank)
        model, batch, total = first.model, [first], first.examples
        part = -(-sum(submission.examples for submission in model.waiting) // self._lanes)
        most = min(model.max_batch, part)
        if most > total:
            for other in sorted(model.waiting, key=self._rank):
                fits = total + other.examples <= most and _same_shapes(first, other)
                if other is not first and fits:
                    batch.append(other)
                    total += other.examples
        chosen = {id(submission) for submission in batch}
        model.waiting = [s for s in model.waiting if id(s) not in chosen]
        return batch

    def _rank(self, submission: Submission) -> float:
        return submission.urgency_s(self._aging_s)


def join_inputs(batch: list[Submission]) -> tuple[Any, ...]:
    """The inputs of several submissions as those of one."""
    if len(batch) == 1:
        return batch[0].inputs
    columns = zip(*(s.inputs for s in batch), strict=True)
    return tuple(None if column[0] is None else np.concatenate(column) for column in columns)


def split_outputs(batch: list[Submission], outputs: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """Each submission's rows of the outputs, as views."""
    if len(batch) == 1:
        return [outputs]
    ends = np.cumsum([submission.examples for submission in batch])
    return [
        tuple(output[end - submission.examples : end] for output in outputs)
        for submission, end in zip(batch, ends, strict=True)
    ]


def _same_shapes(left: Submission, right: Submission) -> bool:
    """Whether two submissions bring the same inputs, in the same shapes and dtypes."""
    return all(map(_same_shape, left.inputs, right.inputs))


def _same_shape(left: Any, right: Any) -> bool:
    if left is None or right is None:
        return left is right
    return bool(left.shape[1:] == right.shape[1:] and left.dtype == right.dtype)
