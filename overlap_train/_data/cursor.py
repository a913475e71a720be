"""The position in the training data: which pass, and how many of its batches have been used.

It makes new passes exactly when `keras.Model.fit` makes them: at the start of each epoch without
`steps_per_epoch`, and whenever a pass of known length is used up, even if the epoch ends there (unless
it makes no difference, as with arrays).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from overlap_train._data.feed import Feed
from overlap_train._data.replay_buffer import ReplayPass
from overlap_train._keras.data import warn_out_of_data


@dataclass(frozen=True, slots=True)
class CursorState:
    """Where a cursor stands, between two epochs or inside one."""

    drawn: int
    seen: int  # batches used of the current pass
    open: bool  # whether the current pass goes on in the next epoch
    epochs: int = 0
    within: bool = False
    steps: int = 0
    data: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def place(self) -> dict[str, int | bool]:
        """Returns all but the data."""
        return {part.name: getattr(self, part.name) for part in fields(self) if part.name != "data"}


class Cursor:
    """Walks through a feed, epoch by epoch. Belongs to the training thread."""

    def __init__(
        self, feed: Feed, steps_per_epoch: int | None, group: int = 1, *, tells: bool = True
    ) -> None:
        self.feed = feed
        self.seen = 0  # batches used of the current pass; the next batch has this number
        self.steps = 0  # made in this epoch
        self._steps_as_passed = steps_per_epoch
        self._group = group
        self._steps_per_epoch = None if steps_per_epoch is None else self._whole_groups(steps_per_epoch)
        self._pass: Any = None
        self._within = False
        self._rewound_to: CursorState | None = None
        # The first pass that ended early or had no known length, and the length that Keras concludes from it.
        self._measured: tuple[int, int] | None = None
        self._epochs = self._pass_epoch = 0  # epochs that have ended: now, and when the pass began
        self._has_warned = False
        self._warnings: list[tuple[int, bool, bool]] = []  # epoch, whether steps were asked for, known length
        # The user's data is told of each epoch once, also of one that is taken back and trained again.
        self._begins_told = self._ends_told = 0
        if tells:
            feed.draw_beforehand()
            feed.end_epoch()  # as Keras does before the first epoch

    @property
    def steps_per_epoch(self) -> int | None:
        """Steps in an epoch as the user counts them, or None if only the end of the data shows it."""
        return self._steps_as_passed or self.feed.num_batches

    @property
    def _length(self) -> int | None:
        """Batches that a pass may have, if that is known or has been measured."""
        length = self.feed.num_batches
        return self._measured[1] if length is None and self._measured is not None else length

    @property
    def current_pass(self) -> Any:
        """What the next call draws from."""
        return self._pass.iterator if isinstance(self._pass, ReplayPass) else self._pass

    @property
    def within(self) -> bool:
        """Whether an epoch has begun that is not to be taken back."""
        return self._within and self._rewound_to is None

    def begin_epoch(self) -> None:
        self.steps, goes_on = 0, False
        self._within = True
        if self._rewound_to is not None:
            goes_on = self._rewound_to.within
            self._redo(self._rewound_to)
            self._rewound_to = None
        if self._begins_told <= self._epochs:
            self.feed.begin_epoch()
            self._begins_told = self._epochs + 1
        if self._pass is None or not (self._steps_per_epoch or goes_on):
            self._new_pass()
        if self.seen == 0:
            self._pass_epoch = self._epochs
            self.feed.mark()

    def remaining(self) -> int | None:
        """Steps that may follow in this epoch without a new pass; None if unknown."""
        limits = []
        if self._steps_per_epoch:
            limits.append(self._steps_per_epoch - self.steps)
        if self._length:
            limits.append(self._length - self.seen)
        return min(limits) if limits else None

    def most_steps(self) -> int | None:
        """Returns how many steps the next call may have; None if any number."""
        left, replay = self.remaining(), self.feed.replay
        if replay is None:
            return left
        most = replay.most_steps(self._pass)
        return most if left is None else min(left, most)

    def advance(self, steps: int) -> None:
        """Counts steps that have been made."""
        self.feed.used(self._pass, self.seen, steps)
        self.seen += steps
        self.steps += steps

    def exhausted(self) -> None:
        """Records that the pass ended: its length was unknown, or it was shorter than it said."""
        missing = -self.steps % self._group  # of a group of steps that began, which Keras counts as a whole
        length = self._whole_groups(self.seen)
        if missing and self._length and length >= self._length:
            self.seen = self._length
            return
        if missing and self._steps_per_epoch and self.steps + missing >= self._steps_per_epoch:
            return  # the next epoch will find that there is no more
        if self.steps_per_epoch or not self.seen or not self._has_warned:
            self._has_warned = True
            self._warnings.append((self._epochs, bool(self.steps_per_epoch), False))
        if self._measured is None:  # the first pass that ends so bounds the length of all later ones
            self._measured = self.feed.num_passes, length + self._group  # which found no batch, too
        self._pass = None

    def _whole_groups(self, count: int) -> int:
        """Returns a count of steps as Keras counts them: a group that has begun counts as a whole."""
        return -(-count // self._group) * self._group

    def warn(self, state: CursorState) -> None:
        """Warn of what the epoch that ended at `state` ran out of; one that is rolled back never warns."""
        while self._warnings and self._warnings[0][0] < state.epochs:
            _, asked, known = self._warnings.pop(0)
            warn_out_of_data(asked=asked, known=known)

    def end_epoch(self, *, broken_off: bool = False) -> None:
        """End an epoch. The data is not told of one that is broken off, nor a pass begun, as in Keras."""
        length = self._length
        if not broken_off and self._pass is not None and length and self.seen >= length:
            if self._steps_per_epoch and self._whole_groups(self.steps) < self._steps_per_epoch:
                self._warnings.append((self._epochs, True, True))
            if self.feed.draws_seeds:
                # Keras begins a pass here too, and each one draws from the seeds of the user's pipeline.
                self._new_pass()
            else:
                self._pass = None
        self._epochs += 1
        self._within = False
        if not broken_off and self._ends_told < self._epochs:
            self._ends_told = self._epochs
            self.feed.end_epoch()

    def state(self) -> CursorState:
        """Returns the position; call it between two training calls."""
        if self._rewound_to is not None:
            return self._rewound_to
        steps = self.steps if self._within else 0
        is_open = self._pass is not None
        begun = is_open and (self._within or (bool(self._steps_per_epoch) and self.seen > 0))
        data = self.feed.memory(begun=begun)
        if data and begun:
            data = {**data, "marked": self._pass_epoch}
        if self.feed.num_batches is None and self._measured is not None:
            data = {**data, "found": self._measured}
        return CursorState(self.feed.num_passes, self.seen, is_open, self._epochs, self._within, steps, data)

    def as_left(self, state: CursorState) -> CursorState:
        """Returns `state` with the changes that callbacks have made to the data since it was taken.

        A pass that goes on is drawn again from its first batch, before which they had changed nothing.
        """
        if state.data.get("begun", True):
            return state
        self.feed.tell_anew()
        return replace(state, data={**state.data, **self.feed.memory(begun=False)})

    def restore(self, state: CursorState) -> None:
        """Goes back to a position; the data is fetched again only if another epoch begins."""
        self._rewound_to, self._pass = state, None  # so that it prefetches no more
        self._warnings.clear()

    def settle(self) -> None:
        """Ends the fit: after a rollback the seeds of the user's shuffles go back, too."""
        if self._rewound_to is not None:
            self.feed.leave(self._rewound_to.drawn)

    def close(self) -> None:
        """Ends the open pass and what makes batches for it. Idempotent."""
        passes, self._pass = [self._pass], None
        self.feed.close(passes)

    def resume(self, state: CursorState) -> Sequence[str]:
        """Goes to a position of another process."""
        self._measured = state.data.get("found")
        others = self.feed.recall(state.drawn, state.data)
        epoch = state.data.get("marked", state.epochs)
        self._ends_told, self._begins_told = epoch, epoch + ("marked" in state.data)
        self.feed.skip_epochs(epoch)
        self.restore(state)
        return others

    def forget(self, state: CursorState) -> None:
        """Lets go of what only a rollback to before `state` would need."""
        self.feed.forget(state.drawn, state.seen)

    def forget_used(self) -> None:
        """Lets go of what only a rollback would need."""
        if self.feed.replay is not None and self._rewound_to is None:
            self.feed.forget(self.feed.num_passes, self.seen)

    def _new_pass(self) -> None:
        self._pass, self.seen = self.feed.new_pass(), 0

    def _redo(self, state: CursorState) -> None:
        self._pass = None
        self._epochs, self._pass_epoch = state.epochs, state.data.get("marked", state.epochs)
        self.steps = state.steps
        if self._measured is not None and self._measured[0] > state.drawn - state.open:
            self._measured = None  # on a pass that is to be made again
        if not (state.open and (self._steps_per_epoch or state.within)):
            self.feed.rewind(state.drawn)
            return
        self._pass, self.seen = self.feed.reopen(state.drawn, state.seen), state.seen
        while self._ends_told < state.epochs:  # in another process, which has told nothing of them
            if self._begins_told == self._ends_told:
                self.feed.begin_epoch()
            self.feed.end_epoch()
            self._ends_told += 1
            self._begins_told = self._ends_told
