"""The position in the training data: which pass, and how many of its batches have been used.

It makes new passes exactly when `keras.Model.fit` makes them: at the start of each epoch without
`steps_per_epoch`, and whenever a pass of known length is used up, even if the epoch ends there (unless
nobody could tell, as with arrays).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

from overlap_train._data.feed import Feed

__all__ = ["Cursor", "CursorState"]


@dataclass(frozen=True, slots=True)
class CursorState:
    """Where a cursor stands between two epochs.

    Attributes:
        drawn: passes made so far.
        seen: batches used of the current pass.
        open: whether the current pass goes on in the next epoch.
    """

    drawn: int
    seen: int
    open: bool


class Cursor:
    """Walks through a feed, epoch by epoch. Belongs to the training thread.

    Attributes:
        feed: the data.
    """

    def __init__(
        self, feed: Feed, steps_per_epoch: int | None, group: int = 1, *, tells: bool = True
    ) -> None:
        """Begins before the first epoch.

        Args:
            feed: the data.
            steps_per_epoch: as for `fit`.
            group: `steps_per_execution`: an epoch has whole groups of steps, as long as the data lasts.
            tells: whether the user's data is told that it begins.
        """
        self.feed = feed
        self._asked = steps_per_epoch
        self._steps_per_epoch = None if steps_per_epoch is None else -(-steps_per_epoch // group) * group
        self._pass: Any = None
        self._seen = 0
        self._steps = 0
        self._rewound_to: CursorState | None = None
        if tells:
            feed.end_epoch()  # as Keras does before the first epoch

    @property
    def steps_per_epoch(self) -> int | None:
        """Steps in an epoch as the user counts them, or None if only the end of the data will tell."""
        return self._asked or self.feed.num_batches

    @property
    def current_pass(self) -> Any:
        return self._pass

    @property
    def seen(self) -> int:
        """Batches used of the current pass; the next batch has this number."""
        return self._seen

    @property
    def steps(self) -> int:
        """Steps made in this epoch."""
        return self._steps

    def begin_epoch(self) -> None:
        if self._rewound_to is not None:
            self._redo(self._rewound_to)
            self._rewound_to = None
        self.feed.begin_epoch()
        self._steps = 0
        if self._pass is None or not self._steps_per_epoch:
            self._new_pass()

    def remaining(self) -> int | None:
        """Steps that may follow in this epoch without a new pass; None if unknown."""
        limits = []
        if self._steps_per_epoch:
            limits.append(self._steps_per_epoch - self._steps)
        if self.feed.num_batches:
            limits.append(self.feed.num_batches - self._seen)
        return min(limits) if limits else None

    def advance(self, steps: int) -> None:
        """Counts steps that have been made."""
        self._seen += steps
        self._steps += steps

    def exhausted(self) -> None:
        """Says that the pass ended: its length was unknown, or it was shorter than it said.

        Raises:
            ValueError: if the very first pass had no batch.
        """
        if self.feed.drawn == 1 and self._seen == 0:
            raise ValueError("the training data is empty: it gave no batch; pass at least one")
        if self.steps_per_epoch:
            _warn_out_of_data()
        self._pass = None

    def end_epoch(self) -> None:
        length = self.feed.num_batches
        if self._pass is not None and length and self._seen >= length:
            if self._steps_per_epoch and self._steps < self._steps_per_epoch:
                _warn_out_of_data()
            if self.feed.draws_seeds:
                # Keras begins a pass here too, and each one draws from the seeds of the user's pipeline.
                self._new_pass()
            else:
                self._pass = None
        self.feed.end_epoch()

    def state(self) -> CursorState:
        """Returns the position; call it between two epochs."""
        if self._rewound_to is not None:
            return self._rewound_to
        return CursorState(self.feed.drawn, self._seen, self._pass is not None)

    def restore(self, state: CursorState) -> None:
        """Goes back to a position; the data is fetched again only if another epoch begins."""
        self._rewound_to = state

    def forget(self, state: CursorState) -> None:
        """Says that nobody will go back to before `state`."""
        self.feed.forget(max(0, state.drawn - 1))

    def _new_pass(self) -> None:
        self._pass = self.feed.new_pass()
        self._seen = 0

    def _redo(self, state: CursorState) -> None:
        self._pass = None
        if not (state.open and self._steps_per_epoch):
            self.feed.rewind(state.drawn)
            return
        self.feed.rewind(state.drawn - 1)
        self._new_pass()
        if hasattr(self._pass, "get_next"):
            for _ in range(state.seen):
                next(self._pass)
        self._seen = state.seen


def _warn_out_of_data() -> None:
    warnings.warn(
        "the training data ran out before the epoch was complete; make sure that it holds at least "
        "`steps_per_epoch * epochs` batches, for example with `.repeat()`",
        UserWarning,
        stacklevel=3,
    )
