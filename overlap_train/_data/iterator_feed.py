"""A: training data of any other kind, drawn by an iterator for each pass."""

from __future__ import annotations

import concurrent.futures
from typing import Any

import tensorflow as tf

from overlap_train._data.feed import Feed
from overlap_train._data.pipeline import (
    calls_python,
    captured_by,
    draws_lazily,
    keeps_state,
    prepared_batches,
    read_by,
)
from overlap_train._data.preprocessing import Preprocess
from overlap_train._data.row_orders import in_background
from overlap_train._keras.data import Pipeline

__all__ = ["IteratorFeed"]


class IteratorFeed(Feed):
    """Anything that Keras can turn into a `tf.data.Dataset`; a pass is an iterator over it.

    Each new iterator draws from the seeds of the user's shuffles, so a pass is repeated by putting those
    seeds back to where they stood at the first pass and making as many iterators again. The first
    iterator's state, taken before it has drawn an element, holds the seeds and no data. Taking it costs a
    few microseconds for each slot of a shuffle buffer, so it is done once, in a thread of its own, while
    the training functions are traced. Where Python makes the data there is no such state, and where the
    pipeline's functions write to variables (a `tf.random.Generator`) it is not in the iterator; nor are the
    seeds of a shuffle that draws them only with its first element, as under another shuffle or a repeat.
    """

    def __init__(self, pipeline: Pipeline, preprocess: Preprocess | None = None) -> None:
        super().__init__()
        self._pipeline = pipeline
        self._dataset = prepared_batches(pipeline.dataset, preprocess)
        self.num_batches = pipeline.num_batches
        self.element_spec = self._dataset.element_spec
        self.captured = captured_by(self._dataset)
        self.reads = read_by(self._dataset)
        self.acts_at_epochs = pipeline.acts_at_epochs
        self._first: Any = None
        self._origin: concurrent.futures.Future[tf.Tensor | None] | None = None

    def prepare(self) -> None:
        """Makes the first iterator and begins to save its seeds."""
        if self._origin is not None:
            return
        if not self._has_seeds():
            self._origin = concurrent.futures.Future()
            self._origin.set_result(None)
            return
        self._first = iter(self._dataset)
        first = self._first
        self._origin = in_background(lambda: _save_iterator(first), "overlap-seeds")

    def look_only(self) -> None:
        # An iterator would draw from the user's seeds; the pipeline's operations tell nearly as much.
        if self._origin is None:
            known = self._has_seeds() and not calls_python(self._dataset)
            self._origin = concurrent.futures.Future()
            self._origin.set_result(tf.constant(0) if known else None)

    def _has_seeds(self) -> bool:
        """Whether the state of a new iterator is all that the passes from it on depend on."""
        if not self._pipeline.is_dataset or not isinstance(self._dataset, tf.data.Dataset):
            return False
        return not keeps_state(self._dataset) and not draws_lazily(self._dataset)

    @property
    def rewindable(self) -> bool:
        self.prepare()
        return self._origin is not None and self._origin.result() is not None

    def new_pass(self) -> Any:
        self.prepare()
        self.drawn += 1
        if self._first is None:
            return iter(self._dataset)
        assert self._origin is not None
        self._origin.result()  # an iterator that is being saved must not be advanced
        iterator, self._first = self._first, None
        return iterator

    def rewind(self, drawn: int) -> None:
        if drawn == self.drawn:
            return
        if not self.rewindable:
            raise RuntimeError(
                "a callback has changed the training, whose data cannot be rewound, although it declares "
                "overlap_safe = True; leave that out, or pass ValidationPolicy(on_change='continue')"
            )
        assert self._origin is not None
        self._first = iter(self._dataset)
        tf.raw_ops.DeserializeIterator(
            resource_handle=self._first._iterator_resource, serialized=self._origin.result()
        )
        for _ in range(drawn):
            self._first = iter(self._dataset)
        self.drawn = drawn

    def describe(self) -> str:
        return f"{self.num_batches} batches\n{self.element_spec}"

    def begin_epoch(self) -> None:
        self._pipeline.begin_epoch()

    def end_epoch(self) -> None:
        self._pipeline.end_epoch()


def _save_iterator(iterator: Any) -> tf.Tensor | None:
    """Returns the state of a `tf.data` iterator, variant[n], or None if Python takes part in it."""
    resource = iterator._iterator_resource
    refuse, ignore = 2, 1
    try:
        return tf.raw_ops.SerializeIterator(resource_handle=resource, external_state_policy=refuse)
    except tf.errors.FailedPreconditionError as error:
        # Random operations are made anew with each iterator and need no state; Python functions have one
        # that nobody can see.
        if "PyFunc" in str(error):
            return None
    except tf.errors.OpError:
        return None
    return tf.raw_ops.SerializeIterator(resource_handle=resource, external_state_policy=ignore)
