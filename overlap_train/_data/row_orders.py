"""In which order the rows of arrays are trained, pass by pass, as `keras.Model.fit` would draw it."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable
from typing import TypeVar

import tensorflow as tf

from overlap_train._data.drawing import all_batches
from overlap_train._data.pipeline_facts import without_autotune
from overlap_train._keras.data import Arrays
from overlap_train._support.threads import leaves_nothing

__all__ = ["RowOrders", "in_background"]

_T = TypeVar("_T")


class RowOrders:
    """The order of the rows in each pass, int64[num_samples]. Belongs to the training thread.

    Keras's pipeline draws from the global seed alone, anew in each pass: with one, all passes have the same
    order, which is drawn once. Without one, the next order is drawn in a thread of its own while a pass is
    trained; orders are kept until nobody can roll back to them.

    Args:
        arrays: whose rows they are; not kept.
    """

    def __init__(self, arrays: Arrays) -> None:
        num_samples, shuffle = arrays.num_samples, arrays.shuffle
        self._passes = without_autotune(arrays.row_order)
        self._repeats = not shuffle or not _draws_at_random()
        self._draw = self._draw_as_keras
        if shuffle and shuffle != "batch" and not self._repeats:
            # An iterator takes 11 ms or more to be made, and Python's lock with it; the shuffle below one.
            shuffled = tf.function(
                lambda: tf.random.shuffle(tf.range(num_samples, dtype=tf.int64)), autograph=False
            ).get_concrete_function()
            self._draw = lambda: tf.identity(shuffled())  # to the device that trains
        self._kept: dict[int, tf.Tensor] = {}
        self._next: concurrent.futures.Future[tf.Tensor] | None = None

    def __getitem__(self, number: int) -> tf.Tensor:
        """Returns the order of a pass, counted from 0: of the one after the last, or of one that is kept."""
        if number not in self._kept:
            if self._repeats and self._kept:
                self._kept[number] = next(iter(self._kept.values()))
            else:
                self._kept[number] = self._draw() if self._next is None else self._next.result()
                self._next = None if self._repeats else in_background(self._draw, "overlap-order")
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

    def _draw_as_keras(self) -> tf.Tensor:
        return tf.concat(all_batches(self._passes), axis=0)


def in_background(function: Callable[[], _T], name: str) -> concurrent.futures.Future[_T]:
    """Calls a function in a thread that ends with it, or at once where the system starts no more threads."""
    executor = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix=name)
    try:
        return executor.submit(leaves_nothing(function))
    except RuntimeError:  # can't start new thread
        future: concurrent.futures.Future[_T] = concurrent.futures.Future()
        future.set_result(function())
        return future
    finally:
        executor.shutdown(wait=False)


def _draws_at_random() -> bool:
    """Whether random operations in functions traced now are seeded by nothing."""
    found: list[tuple[int | None, int | None]] = []
    # In a function, because asking outside of one would advance what eager operations draw from.
    ask = tf.function(lambda: found.append(tf.compat.v1.get_seed(None)), autograph=False)
    ask.get_concrete_function()
    return found[0] == (None, None)
