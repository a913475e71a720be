"""A: what the training draws from: one pass after another, which can be made again.

A pass is whatever one compiled call reads from: for arrays the order of the rows, for everything else an
iterator. Passes are made when and as often as `keras.Model.fit` makes them, because each one may advance a
seed of the user's pipeline. All of this belongs to the training thread.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from overlap_train._data.pass_state import NotesState
from overlap_train._data.replay_buffer import ReplayBuffer
from overlap_train._inspection.traced import CapturedVariable, TracedFunction


class Feed(abc.ABC):
    """Training batches, one pass after another."""

    num_batches: int | None
    element_spec: Any  # nested `tf.TensorSpec` of one batch, the batch dimension None
    ends_alone = True  # False where a pass goes on until those of other hosts have ended
    draws_seeds = True  # whether making a pass that is not read changes the ones after it
    # the stages of a pipeline that draw a new order for each pass; see `shuffles_of`
    shuffles: frozenset[int] = frozenset()
    files: frozenset[str] = frozenset()  # in which a pipeline caches elements; see `cache_files`
    preparation: TracedFunction | None = None  # what makes a batch of rows inside the loop, if anything does
    # variables that the functions of a pipeline read whenever it runs ahead
    captured: Sequence[CapturedVariable] = ()
    # those of them to which the functions write, such as the seeds of an augmentation
    written_variables: Sequence[CapturedVariable] = ()
    reads: Sequence[str] = ()  # the names of these, and of tables
    runs_python = False  # whether Python takes part in making a batch: others may change what it makes
    replay: ReplayBuffer | None = None  # the batches that a rollback may need, where they are kept
    user_dataset: tf.data.Dataset | None = None  # whose arrays tell this data from other data
    num_passes = 0  # that have been made

    @property
    def full_batch(self) -> int | None:
        """Rows of a full batch, or None if that is not known beforehand."""
        leaves = [s for s in keras.tree.flatten(self.element_spec) if isinstance(s, tf.TensorSpec)]
        return int(leaves[0].shape[0]) if leaves and leaves[0].shape.rank and leaves[0].shape[0] else None

    @property
    def first_rows(self) -> int | None:
        """Rows of the first batch, or None if they are not known beforehand."""
        return self.full_batch

    def prepare(self) -> None:
        """Begins slow work that goes on while the functions are traced; call it before that."""

    def draw_beforehand(self) -> None:
        """Draws a batch and drops it, where Keras does so before the first pass."""

    def inspection(self) -> contextlib.ExitStack:
        """Prevents drawing within the block, even to find out whether the data could be drawn again."""
        return contextlib.ExitStack()

    @property
    @abc.abstractmethod
    def rewindable(self) -> bool:
        """Whether `rewind` works to wherever a training has been, in this process or another."""

    @property
    def python_sources(self) -> Sequence[Any]:
        """The user's objects and functions that make batches in Python."""
        return ()

    @abc.abstractmethod
    def new_pass(self) -> Any:
        """Begins the next pass and counts it."""

    @abc.abstractmethod
    def rewind(self, num_passes: int) -> None:
        """Makes the pass that follows `num_passes` passes the next one again."""

    def leave(self, num_passes: int) -> None:
        """Leaves the user's shuffles as `num_passes` passes do: nothing more is drawn in this fit."""

    def reopen(self, number: int, batch: int) -> Any:
        """Makes pass number `number`, counted from 1, the current one again, at a batch."""
        self.rewind(number - 1)
        return self.new_pass()

    def keep(self, limit_bytes: int) -> bool:
        """Keeps batches from now on for a rollback, in `replay`; returns whether this data allows it."""
        return False

    def used(self, batches: Any, first: int, steps: int) -> None:
        """Records that batches of a pass have been drawn, from number `first` on."""

    def forget(self, number: int, batch: int = 0) -> None:
        """Lets go of what only a rollback to before a batch of pass `number` would need."""

    def remember(self, note: NotesState) -> bool:
        """Prepares to tell another process the position; returns whether this data allows it."""
        return self.rewindable

    @property
    def unsaved(self) -> Sequence[str]:
        """The names of those parts of the data's state that no checkpoint holds."""
        return ()

    @property
    def unseeded(self) -> Sequence[str]:
        """The operations, in words, that draw without a seed, so that another process draws otherwise."""
        return ()

    def mark(self) -> None:
        """Records that the first batch of the present pass is about to be drawn."""

    def memory(self, *, begun: bool) -> dict[str, Any]:
        """Returns what another process needs in addition to the position, in values for a checkpoint."""
        return {}

    def share_seeds(self, from_chief: Callable[[Any], Any]) -> None:
        """Draws what has no seed from the chief's; every host calls it once, before the first pass."""
        from_chief(None)

    def tell_anew(self) -> None:
        """Makes `memory` read the state behind the present passes again; nothing is drawn."""

    def recall(self, num_passes: int, memory: dict[str, Any]) -> Sequence[str]:
        """Takes what another process stored behind `num_passes` passes; a `rewind` or `reopen` follows.

        Returns the names of attributes that differ from those there; raises ValueError if it cannot go on.
        """
        return ()

    @abc.abstractmethod
    def describe(self) -> dict[str, str]:
        """Returns what cheaply tells this data from other data, part by part; the empty name has its kind.

        A text that begins with " digest " is not reported.
        """

    def begin_epoch(self) -> None:
        """Tells the user's data that an epoch begins (`PyDataset.on_epoch_begin`)."""

    def skip_epochs(self, count: int) -> None:
        """Counts epochs that have ended in another process, of which the user's data is not told."""

    def end_epoch(self) -> None:
        """Tells the user's data that an epoch is over (`PyDataset.on_epoch_end`)."""

    def close(self, passes: list[Any] | None = None) -> None:
        """Ends what makes its batches; empties `passes`, the last reference to an open one. Idempotent."""
