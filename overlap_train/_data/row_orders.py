"""In which order the rows of arrays are trained, pass by pass, as `keras.Model.fit` would draw it."""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable
from concurrent.futures import Future

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from overlap_train._data.drawing import all_batches
from overlap_train._data.pipeline_facts import without_autotune
from overlap_train._keras.data import Arrays, row_order, row_shuffling
from overlap_train._keras.randomness import global_seed
from overlap_train._support.threads import in_background

__all__ = ["RowOrders"]

_MOST_REMEMBERED = 1 << 20  # rows: 8 MiB
_MOST_AT_ONCE = 1 << 16  # rows that are shuffled in less time than a thread takes to begin and to end


class RowOrders:
    """The order of the rows in each pass, int64[num_samples]. Belongs to the training thread.

    Keras's pipeline draws from the global seed alone, anew in each pass: with one, all passes have the same
    order, which is drawn once, as where Keras shuffles without drawing (`row_shuffling`). Otherwise each pass
    has an order of its own, which follows from `own_seed` and the number of the pass: so any pass can be made
    again, after a rollback and by another process. The next one is drawn in a thread while a pass is trained,
    or when it is asked for if it is short.

    The global seed counts that is set when this is made, as with Keras's pipeline, or that a training had
    which goes on here.
    """

    def __init__(self, arrays: Arrays) -> None:
        self._rows = (arrays.num_samples, arrays.batch_size, arrays.shuffle)
        self.draw_under(_global_seed() if arrays.shuffle else None)

    def draw_under(self, seed: int | None, own_seed: int | None = None) -> None:
        """Draws all orders under a global seed, or without one from another number, by default a new one."""
        num_samples, _, shuffle = self._rows
        repeats = not shuffle or seed is not None or row_shuffling() == "fixed"
        self.seed = seed
        self.own_seed = None if repeats else secrets.randbits(63) if own_seed is None else own_seed
        self._ahead = not repeats and num_samples > _MOST_AT_ONCE
        self._newest: tuple[int, tf.Tensor] | None = None
        self._next: tuple[int, Future[npt.NDArray[np.int64]]] | None = None
        with global_seed(seed):
            self._repeated = _repeated_order(*self._rows, seed) if repeats else None

    def __getitem__(self, number: int) -> tf.Tensor:
        """Returns the order of a pass, counted from 0."""
        if self._repeated is not None:
            self._newest = self._newest or (0, self._repeated())
        elif self._newest is None or self._newest[0] != number:
            ahead, self._next = self._next, None
            drawn = ahead[1].result() if ahead is not None and ahead[0] == number else self._draw(number)
            self._newest = number, tf.constant(drawn)  # on the device that trains
            if self._ahead:
                following = in_background(functools.partial(self._draw, number + 1), "overlap-order")
                self._next = number + 1, following
        assert self._newest is not None
        return self._newest[1]

    def _draw(self, number: int) -> npt.NDArray[np.int64]:
        """Draws the order of a pass; from any thread."""
        num_samples, batch_size, shuffle = self._rows
        generator = np.random.default_rng([self.own_seed or 0, number])
        if shuffle != "batch":
            return generator.permutation(num_samples)
        rows, full = np.arange(num_samples), num_samples - num_samples % batch_size
        within = generator.permuted(rows[:full].reshape(-1, batch_size), axis=1).ravel()
        return np.concatenate([within, generator.permutation(rows[full:])])


def _repeated_order(
    num_samples: int, batch_size: int, shuffle: bool | str, seed: int | None
) -> Callable[[], tf.Tensor]:
    """Returns what draws the order that all passes have.

    Keras's pipeline takes some 20 ms to be made and run, most of a short fit, and TensorFlow keeps something
    of it for good. So it is not made where the order is known without it.
    """
    if not shuffle:
        return lambda: tf.range(num_samples, dtype=tf.int64)
    if num_samples > _MOST_REMEMBERED:
        passes = _passes(num_samples, batch_size, shuffle)
        return lambda: _first(passes)
    order = _remembered(num_samples, batch_size if shuffle == "batch" else 0, shuffle, seed)
    return lambda: order


@functools.lru_cache(maxsize=4)
def _remembered(num_samples: int, batch_size: int, shuffle: bool | str, seed: int | None) -> tf.Tensor:
    """Returns the order that Keras's pipeline has in each pass under the global seed, which has to be set."""
    return _first(_passes(num_samples, batch_size, shuffle))


def _passes(num_samples: int, batch_size: int, shuffle: bool | str) -> tf.data.Dataset:
    return without_autotune(row_order(num_samples, batch_size, shuffle))


def _first(passes: tf.data.Dataset) -> tf.Tensor:
    return tf.concat(all_batches(passes), axis=0)


def _global_seed() -> int | None:
    """Returns the global seed by which random operations in functions traced now are seeded."""
    # In a graph, because asking outside of one would advance what eager operations draw from.
    with tf.__internal__.FuncGraph("seed").as_default():
        seed = tf.compat.v1.get_seed(None)[0]
    return None if seed is None else int(seed)  # NumPy's, too, is written into a checkpoint
