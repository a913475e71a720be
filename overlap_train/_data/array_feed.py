"""A: training arrays, held as tensors and gathered inside the compiled loop by an order of the rows.

The orders are those that `keras.Model.fit` would draw, pass by pass. All other data is an `IteratorFeed`.
"""

from __future__ import annotations

import functools
import hashlib
import math
import secrets
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from overlap_train._data import lent
from overlap_train._data.batches import (
    batch_spec,
    copied_bytes,
    lent_or_copied,
    prepare,
    size_bytes,
    trace_preprocess,
)
from overlap_train._data.feed import Feed
from overlap_train._data.iterator_feed import IteratorFeed
from overlap_train._data.iterators import next_batch
from overlap_train._data.pipeline_facts import without_autotune
from overlap_train._keras.data import Arrays, Pipeline, row_order, row_shuffling
from overlap_train._keras.randomness import global_seed
from overlap_train._support.arguments import is_count
from overlap_train._support.fit_arguments import Preprocess

_MOST_CACHED = 1 << 20  # rows: 8 MiB


class RowOrders:
    """The order of the rows in each pass, int64[num_samples]. Belongs to the training thread.

    Keras's pipeline draws from the global seed alone, anew in each pass. With a global seed all passes have
    the same order, which is drawn once; so they do where Keras shuffles without drawing (`row_shuffling`).
    Otherwise the order of a pass follows from `own_seed` and the number of the pass, so that any pass can be
    made again, after a rollback and by another process.

    The global seed is the one that is set when this is made, as with Keras's pipeline, or that of a training
    that goes on here.
    """

    def __init__(self, arrays: Arrays) -> None:
        self._rows = (arrays.num_samples, arrays.batch_size, arrays.shuffle)
        self.draw_under(_global_seed() if arrays.shuffle else None)

    def draw_under(self, seed: int | None, own_seed: int | None = None) -> None:
        """Draws all orders under a global seed, or without one from `own_seed`, by default a new one."""
        self._repeats = not self._rows[2] or seed is not None or row_shuffling() == "fixed"
        self.seed = seed
        self.own_seed = None if self._repeats else secrets.randbits(63) if own_seed is None else own_seed
        self._current: tuple[int, tf.Tensor] | None = None

    def __getitem__(self, number: int) -> tf.Tensor:
        """Returns the order of a pass, counted from 0."""
        number = 0 if self._repeats else number
        if self._current is None or self._current[0] != number:
            self._current = number, self._repeated() if self._repeats else self._draw(number)
        return self._current[1]

    def _repeated(self) -> tf.Tensor:
        """Returns the order that all passes have.

        Keras's pipeline takes some 20 ms to be made and run, most of a short fit, and TensorFlow never frees
        all of it. So it is not made where the order is known without it.
        """
        num_samples, batch_size, shuffle = self._rows
        if not shuffle:
            return tf.range(num_samples, dtype=tf.int64)
        with global_seed(self.seed):
            if num_samples > _MOST_CACHED:
                return _keras_order(*self._rows)
            return _cached_order(num_samples, batch_size if shuffle == "batch" else 0, shuffle, self.seed)

    def _draw(self, number: int) -> tf.Tensor:
        """Draws the order of a pass, onto the device that trains."""
        num_samples, batch_size, shuffle = self._rows
        generator = np.random.default_rng([self.own_seed or 0, number])
        if shuffle != "batch":
            return tf.constant(generator.permutation(num_samples))
        rows, full = np.arange(num_samples), num_samples - num_samples % batch_size
        within = generator.permuted(rows[:full].reshape(-1, batch_size), axis=1).ravel()
        return tf.constant(np.concatenate([within, generator.permutation(rows[full:])]))


def _keras_order(num_samples: int, batch_size: int, shuffle: bool | str) -> tf.Tensor:
    """Returns the order that Keras's pipeline has in each pass under the global seed that is set."""
    iterator = iter(without_autotune(row_order(num_samples, batch_size, shuffle)))
    return tf.concat([*iter(lambda: next_batch(iterator), None)], axis=0)


@functools.lru_cache(maxsize=4)
def _cached_order(num_samples: int, batch_size: int, shuffle: bool | str, seed: int | None) -> tf.Tensor:
    """Returns the same; `seed` is the global seed."""
    return _keras_order(num_samples, batch_size, shuffle)


def _global_seed() -> int | None:
    """Returns the global seed that seeds random operations in functions that are traced now."""
    # In a graph, because asking outside of one would advance what eager operations draw from.
    with tf.__internal__.FuncGraph("seed").as_default():
        seed = tf.compat.v1.get_seed(None)[0]
    return None if seed is None else int(seed)  # a checkpoint takes no integer of NumPy's


_DIGEST_BYTES, _FEWEST_DIGEST_ROWS = 1 << 26, 64


class ArrayFeed(Feed):
    """Arrays held as tensors of their own dtype, gathered by an order inside the compiled loop.

    Read-only arrays are not copied where their layout allows that (`zero_copy.as_tensor`), so a mapped file
    may be larger than memory. Other arrays are copied, as by Keras: changing them during the training has no
    effect.

    A pass is the order of the rows, int64[num_samples].
    """

    rewindable = True
    draws_seeds = False

    def __init__(self, arrays: Arrays, preprocess: Preprocess | None = None) -> None:
        self.preprocess = preprocess
        self.num_samples, self.batch_size = arrays.num_samples, arrays.batch_size
        self.num_batches = math.ceil(self.num_samples / self.batch_size)
        self.tensors = keras.tree.map_structure(lent_or_copied, arrays.inputs)
        shown = [array for array in keras.tree.flatten(arrays.inputs) if not copied_bytes(array)]
        self._mapped = lent.MappedFiles(shown) if shown else None
        raw_spec = batch_spec(self.tensors, self.num_samples, self.batch_size)
        self.preparation, self.element_spec = trace_preprocess(preprocess, raw_spec)
        self._shuffle = arrays.shuffle
        self._orders = RowOrders(arrays)

    @property
    def full_batch(self) -> int:
        return self.batch_size

    @property
    def first_rows(self) -> int:
        return min(self.batch_size, self.num_samples)

    def batch(self, order: tf.Tensor, index: tf.Tensor, tensors: Any = None, *, full: bool = False) -> Any:
        """Returns batch `index` of a pass: rows gathered by its order, int64[num_samples], and prepared."""
        size: Any = self.batch_size
        first = index * self.batch_size
        if self.num_samples % self.batch_size and not full:
            total = self.num_samples if tensors is None else tf.shape(order, tf.int64)[0]
            size = tf.minimum(first + self.batch_size, total) - first
        rows = tf.slice(order, [first], [size])
        source = self.tensors if tensors is None else tensors
        gathered = keras.tree.map_structure(lambda t: tf.gather(t, rows), source)
        if self.preparation is None or full or tf.executing_eagerly():
            return prepare(self.preprocess, gathered)
        return self.preparation(gathered)

    def describe(self) -> dict[str, str]:
        rows, digest = self._digest_rows(), hashlib.sha256()
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

    def _digest_rows(self) -> npt.NDArray[np.int64]:
        """Returns the rows that the digest covers: all, or of large arrays some, evenly spaced."""
        row_bytes = sum(map(size_bytes, keras.tree.flatten(self.tensors))) // self.num_samples
        most = max(_FEWEST_DIGEST_ROWS, _DIGEST_BYTES // max(1, row_bytes))
        return np.unique(np.linspace(0, self.num_samples - 1, min(most, self.num_samples)).astype(np.int64))

    def new_pass(self) -> tf.Tensor:
        self.num_passes += 1
        return self._orders[self.num_passes - 1]

    def end_epoch(self) -> None:
        if self._mapped is not None:
            self._mapped.require_unwritten()

    def rewind(self, num_passes: int) -> None:
        self.num_passes = num_passes

    def share_seeds(self, from_chief: Callable[[Any], Any]) -> None:
        seeds = from_chief([self._orders.seed, self._orders.own_seed])
        if self._shuffle and isinstance(seeds, list):
            self._orders.draw_under(*seeds)

    def memory(self, *, begun: bool) -> dict[str, Any]:
        seeds = {"seed": self._orders.seed, "own_seed": self._orders.own_seed}
        return seeds if self._shuffle else {}

    def recall(self, num_passes: int, memory: dict[str, Any]) -> Sequence[str]:
        draws_anew = self._shuffle and memory.get("seed") is None and row_shuffling() != "fixed"
        if draws_anew and not is_count(memory.get("own_seed"), (1 << 63) - 1):
            raise ValueError("it does not say in which orders its rows come")
        if self._shuffle:
            self._orders.draw_under(memory.get("seed"), memory.get("own_seed"))
        return ()


def make_feed(
    data: Arrays | Pipeline, hold_in_memory: Callable[[int], bool], preprocess: Preprocess | None = None
) -> Feed:
    """Returns what the training draws its batches from."""
    if isinstance(data, Arrays):
        has_orders = data.dense and not (data.shuffle and row_shuffling() == "counted")
        if has_orders and hold_in_memory(sum(map(copied_bytes, keras.tree.flatten(data.inputs)))):
            return ArrayFeed(data, preprocess)
        data = data.pipeline
    return IteratorFeed(data, preprocess)
