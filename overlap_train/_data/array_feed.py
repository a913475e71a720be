"""A: training arrays, held as tensors and gathered inside the compiled loop."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from types import NoneType
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from overlap_train._data.feed import Feed
from overlap_train._data.memory import lent_or_copied, size_bytes
from overlap_train._data.preprocessing import Preprocess, prepare, trace_preprocess
from overlap_train._data.row_orders import RowOrders
from overlap_train._keras.data import Arrays, row_shuffling
from overlap_train._support.arguments import is_count

__all__ = ["ArrayFeed"]

_DIGEST_BYTES, _FEWEST_DIGEST_ROWS = 1 << 26, 64


class ArrayFeed(Feed):
    """Arrays held as tensors of their own dtype, gathered by an order inside the compiled loop.

    Read-only arrays are not copied where their layout allows that (`zero_copy.as_tensor`), so a mapped file
    may be larger than memory. Others are, as by Keras: who changes them during the training changes nothing.

    A pass is the order of the rows, int64[num_samples].

    Attributes:
        tensors: nested tensors, the rows along axis 0.
        num_samples: rows.
        batch_size: rows of a full batch.
        preprocess: the user's function that makes a batch of gathered rows; None if they are one.
        preparation: the same, traced.
    """

    rewindable = True
    draws_seeds = False

    def __init__(self, arrays: Arrays, preprocess: Preprocess | None = None) -> None:
        super().__init__()
        self.preprocess = preprocess
        self.num_samples, self.batch_size = arrays.num_samples, arrays.batch_size
        self.num_batches = math.ceil(self.num_samples / self.batch_size)
        self.tensors = keras.tree.map_structure(lent_or_copied, arrays.inputs)
        static_size = None if self.num_samples % self.batch_size else self.batch_size
        gathered = keras.tree.map_structure(
            lambda t: tf.TensorSpec([static_size, *t.shape[1:]], t.dtype), self.tensors
        )
        self.preparation, self.element_spec = trace_preprocess(preprocess, gathered)
        self._shuffle = arrays.shuffle
        self._orders = RowOrders(arrays)

    @property
    def full_batch(self) -> int:
        return self.batch_size

    def batch(self, order: tf.Tensor, index: tf.Tensor, tensors: Any = None, *, full: bool = False) -> Any:
        """Returns batch `index` of a pass: rows gathered by its order, int64[num_samples], and prepared.

        Args:
            order: the pass.
            index: which batch, int64[].
            tensors: stand in for `self.tensors` while a loop is traced that takes them as arguments.
            full: whether the batch is known not to be a smaller last one, and may have a static size.
        """
        size: Any = self.batch_size
        if self.num_samples % self.batch_size and not full:
            total = self.num_samples if tensors is None else tf.shape(order, tf.int64)[0]
            size = tf.minimum(index * self.batch_size + self.batch_size, total)
            size -= index * self.batch_size
        rows = tf.slice(order, [index * self.batch_size], [size])
        source = self.tensors if tensors is None else tensors
        gathered = keras.tree.map_structure(lambda t: tf.gather(t, rows), source)
        if self.preparation is None or full or tf.executing_eagerly():
            return prepare(self.preprocess, gathered)
        return self.preparation(gathered)

    def describe(self) -> dict[str, str]:
        rows, digest = self._rows_that_tell(), hashlib.sha256()
        leaves = keras.tree.flatten(self.tensors)
        for tensor in leaves:
            digest.update(tf.io.serialize_tensor(tf.gather(tensor, rows)).numpy())
        return {
            "": "arrays",
            "rows": str(self.num_samples),
            "batch_size": str(self.batch_size),
            "shuffle": str(self._shuffle),
            "elements": " and ".join(f"{tensor.shape[1:]} {tensor.dtype.name}" for tensor in leaves),
            "content": f" digest {digest.hexdigest()[:16]} of {len(rows)} rows",
        }

    def _rows_that_tell(self) -> npt.NDArray[np.int64]:
        """Returns the rows by which the arrays are told from others: all, or of large ones some, evenly."""
        row_bytes = sum(map(size_bytes, keras.tree.flatten(self.tensors))) // self.num_samples
        most = max(_FEWEST_DIGEST_ROWS, _DIGEST_BYTES // max(1, row_bytes))
        return np.unique(np.linspace(0, self.num_samples - 1, min(most, self.num_samples)).astype(np.int64))

    def new_pass(self) -> tf.Tensor:
        self.drawn += 1
        return self._orders[self.drawn - 1]

    def rewind(self, drawn: int) -> None:
        self.drawn = drawn

    def share_seeds(self, from_chief: Callable[[Any], Any]) -> None:
        seeds = from_chief([self._orders.seed, self._orders.own_seed])
        if self._shuffle and isinstance(seeds, list):
            self._orders.draw_under(*seeds)

    def remembered(self, *, begun: bool, seen: int) -> dict[str, Any]:
        seeds = {"seed": self._orders.seed, "own_seed": self._orders.own_seed}
        return seeds if self._shuffle else {}

    def check(self, remembered: dict[str, Any], *, begun: bool) -> None:
        seed, own_seed = remembered.get("seed"), remembered.get("own_seed")
        if type(seed) not in (int, NoneType) or (seed is not None and seed.bit_length() >= 64):
            raise ValueError("the seed of its rows is no integer, or a too long one")
        drawn = self._shuffle and seed is None and row_shuffling() != "fixed"
        if drawn and not is_count(own_seed, (1 << 63) - 1):
            raise ValueError("it does not say in which orders its rows come")

    def recall(self, drawn: int, remembered: dict[str, Any]) -> Sequence[str]:
        self.check(remembered, begun=True)
        if self._shuffle:
            self._orders.draw_under(remembered.get("seed"), remembered.get("own_seed"))
        return ()
