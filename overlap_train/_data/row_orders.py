"""In which order the rows of arrays are trained, pass by pass, as `keras.Model.fit` would draw it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import Future

import tensorflow as tf

from overlap_train._data.drawing import all_batches
from overlap_train._data.pipeline_facts import without_autotune
from overlap_train._keras.data import Arrays, row_order
from overlap_train._keras.randomness import global_seed
from overlap_train._support.threads import in_background

__all__ = ["RowOrders"]

_MOST_REMEMBERED = 1 << 20  # rows: 8 MiB
_MOST_AT_ONCE = 1 << 16  # rows that are shuffled in less time than a thread takes to begin and to end


class RowOrders:
    """The order of the rows in each pass, int64[num_samples]. Belongs to the training thread.

    Keras's pipeline draws from the global seed alone, anew in each pass: with one, all passes have the same
    order, which is drawn once. Without one, the next order is drawn in a thread of its own while a pass is
    trained, or when it is asked for if it is short; orders are kept until nobody can roll back to them.

    The global seed counts that is set when this is made, as with Keras's pipeline, or that a training had
    which goes on here.

    Args:
        arrays: whose rows they are; not kept.

    Attributes:
        seed: under which they are drawn; None without one.
    """

    def __init__(self, arrays: Arrays) -> None:
        self._rows = (arrays.num_samples, arrays.batch_size, arrays.shuffle)
        self.draw_under(_global_seed() if arrays.shuffle else None)

    def draw_under(self, seed: int | None) -> None:
        """Draws all orders under a global seed, or without one."""
        num_samples, _, shuffle = self._rows
        self.seed = seed
        self._repeats = not shuffle or seed is not None
        self._ahead = not self._repeats and (shuffle == "batch" or num_samples > _MOST_AT_ONCE)
        with global_seed(seed):
            self._draw = _drawing(*self._rows, seed)
        self._kept: dict[int, tf.Tensor] = {}
        self._next: Future[tf.Tensor] | None = None

    def __getitem__(self, number: int) -> tf.Tensor:
        """Returns the order of a pass, counted from 0: of the one after the last, or of one that is kept."""
        if number not in self._kept:
            if self._repeats and self._kept:
                self._kept[number] = next(iter(self._kept.values()))
            else:
                self._kept[number] = self._draw() if self._next is None else self._next.result()
                self._next = in_background(self._draw, "overlap-order") if self._ahead else None
        return self._kept[number]

    def __len__(self) -> int:
        """How many are kept."""
        return len(self._kept)

    @property
    def repeats(self) -> bool:
        """Whether all passes have the same order, which another process draws again."""
        return self._repeats

    def recall(self, number: int, order: tf.Tensor) -> None:
        """Takes the order of a pass, counted from 0, as another process drew it."""
        self._kept[number] = order

    def forget(self, number: int) -> None:
        """Says that no pass before this one will be made again."""
        for index in [i for i in self._kept if i < number]:
            del self._kept[index]


def _drawing(
    num_samples: int, batch_size: int, shuffle: bool | str, seed: int | None
) -> Callable[[], tf.Tensor]:
    """Returns what draws the order of a pass.

    Keras's pipeline takes some 20 ms to be made and run, most of a short fit, and TensorFlow keeps something
    of it for good. So it is not made where the order is known without it.
    """
    if not shuffle:
        return lambda: tf.range(num_samples, dtype=tf.int64)
    if seed is None and shuffle != "batch":
        shuffled = _shuffled()
        return lambda: tf.identity(shuffled(tf.constant(num_samples, tf.int64)))  # to the device that trains
    if seed is None or num_samples > _MOST_REMEMBERED:
        passes = _passes(num_samples, batch_size, shuffle)
        return lambda: _first(passes)
    order = _remembered(num_samples, batch_size if shuffle == "batch" else 0, shuffle, seed)
    return lambda: order


@functools.cache
def _shuffled() -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns a function of a number of rows that gives them in a random order; traced without a seed."""
    function = tf.function(lambda count: tf.random.shuffle(tf.range(count)), autograph=False)
    return function.get_concrete_function(tf.TensorSpec([], tf.int64))


@functools.lru_cache(maxsize=4)
def _remembered(num_samples: int, batch_size: int, shuffle: bool | str, seed: int) -> tf.Tensor:
    """Returns the order that Keras's pipeline draws under the global seed, which has to be set."""
    return _first(_passes(num_samples, batch_size, shuffle))


def _passes(num_samples: int, batch_size: int, shuffle: bool | str) -> tf.data.Dataset:
    return without_autotune(row_order(num_samples, batch_size, shuffle))


def _first(passes: tf.data.Dataset) -> tf.Tensor:
    return tf.concat(all_batches(passes), axis=0)


def _global_seed() -> int | None:
    """Returns the global seed by which random operations in functions traced now are seeded.

    Raises:
        RuntimeError: there is none, and TensorFlow's operations are to be deterministic.
    """
    # In a graph, because asking outside of one would advance what eager operations draw from.
    with tf.__internal__.FuncGraph("seed").as_default():
        seed = tf.compat.v1.get_seed(None)[0]
    return None if seed is None else int(seed)  # NumPy's, too, is written into a checkpoint
