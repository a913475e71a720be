"""A: what the training draws from: one pass after another, which can be made again.

A pass is whatever one compiled call reads from: for arrays the order of the rows, for everything else an
iterator. Passes are made when and as often as `keras.Model.fit` makes them, because each one may advance a
seed of the user's pipeline. All of this belongs to the training thread.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from overlap_train._inspection.traced import CapturedVariable, TracedFunction

__all__ = ["Feed"]


class Feed(abc.ABC):
    """Training batches, one pass after another.

    Attributes:
        num_batches: batches in one pass, or None if that is not known beforehand.
        element_spec: nested `tf.TensorSpec` of one batch, the batch dimension None.
        drawn: passes made so far.
        draws_seeds: whether making a pass that is not read changes the ones after it.
        preparation: what makes a batch of rows inside the loop, if anything does.
        captured: variables that the functions of a pipeline read whenever it runs ahead.
        reads: the names of these, and of tables.
        acts_at_epochs: whether the user's data does something when an epoch begins or ends.
    """

    num_batches: int | None
    element_spec: Any
    draws_seeds = True
    preparation: TracedFunction | None = None
    captured: Sequence[CapturedVariable] = ()
    reads: Sequence[str] = ()
    acts_at_epochs = False

    def __init__(self) -> None:
        self.drawn = 0

    @property
    def full_batch(self) -> int | None:
        """Rows of a full batch, or None if that is not known beforehand."""
        leaves = [s for s in keras.tree.flatten(self.element_spec) if isinstance(s, tf.TensorSpec)]
        return int(leaves[0].shape[0]) if leaves and leaves[0].shape.rank and leaves[0].shape[0] else None

    def prepare(self) -> None:
        """Begins what takes its time beside the tracing of the functions; call it before that."""

    def look_only(self) -> None:
        """Has nothing drawn any more, not even to find out whether it could be drawn again."""

    @property
    @abc.abstractmethod
    def rewindable(self) -> bool:
        """Whether `rewind` works."""

    @abc.abstractmethod
    def new_pass(self) -> Any:
        """Begins the next pass and counts it."""

    @abc.abstractmethod
    def rewind(self, drawn: int) -> None:
        """Makes the next pass be pass number `drawn` again."""

    def forget(self, drawn: int) -> None:
        """Says that nobody will rewind to before pass number `drawn`."""

    @abc.abstractmethod
    def describe(self) -> str:
        """Returns what tells this data from other data, as far as that is cheap to find out."""

    def begin_epoch(self) -> None:
        """Tells the user's data that an epoch begins (`PyDataset.on_epoch_begin`)."""

    def end_epoch(self) -> None:
        """Tells the user's data that an epoch is over (`PyDataset.on_epoch_end`)."""
