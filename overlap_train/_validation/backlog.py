"""The epochs that wait for their validations, the oldest first (contract C6)."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterator, Mapping

from overlap_train._snapshot import Snapshot
from overlap_train._validation.pending import PendingEpoch
from overlap_train._validation.suite import ValidationSuite
from overlap_train.options.validation import ValidationPolicy


class Backlog:
    """A queue of trained epochs. Belongs to the training thread."""

    def __init__(self, policy: ValidationPolicy, suite: ValidationSuite, *, max_lag: int) -> None:
        self._policy = policy
        self._suite = suite
        self._queue: deque[PendingEpoch] = deque()
        self.max_lag = max_lag

    @property
    def blocks(self) -> bool:
        """Whether every epoch gets its validation, whatever the clock says."""
        return self._policy.backlog == "block"

    def __iter__(self) -> Iterator[PendingEpoch]:
        return iter(self._queue)

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def oldest(self) -> PendingEpoch:
        return self._queue[0]

    def push(
        self, snapshot: Snapshot, train_logs: Mapping[str, float], *, stops: bool, last: bool
    ) -> PendingEpoch:
        """Appends an epoch and begins its validation, unless the policy leaves it out."""
        due = self._suite.due(snapshot.epoch)
        if due and not last and self._policy.backlog == "latest":
            self._give_up_waiting()
        pending = PendingEpoch(snapshot, train_logs, stops=stops)
        if due:
            pending.start = functools.partial(self._suite.start, snapshot)
        self._queue.append(pending)
        # Data must not be taken ahead of callbacks that have the training go back, or write files.
        if len(self._queue) == 1 or not self._suite.draws_anew:
            pending.begin()
        return pending

    def begin_next(self) -> None:
        """Begins the validation of the epoch that is the oldest now, if it has waited for that."""
        if self._queue:
            self._queue[0].begin()

    def ready(self) -> bool:
        """Whether the oldest epoch can be delivered without waiting."""
        return bool(self._queue) and self._queue[0].ready()

    def must_wait(self, next_epoch: int) -> bool:
        """Whether the oldest epoch has to be delivered before `next_epoch` may begin."""
        if not self._queue:
            return False
        if self._policy.backlog == "block" or self.max_lag == 0:
            return next_epoch - self._queue[0].epoch > self.max_lag
        return len(self._queue) >= self._policy.max_snapshots

    def pop(self) -> PendingEpoch:
        """Removes the oldest epoch."""
        return self._queue.popleft()

    def drop(self) -> None:
        """Gives up every epoch that waits."""
        while self._queue:
            self._queue.pop().cancel()

    def _give_up_waiting(self) -> None:
        for pending in self._queue:
            if pending.is_validated and not any(v.begun() for v in pending.validations):
                pending.leave_out()
