"""D: validation batches that are drawn anew for each validation, one by one, by all workers together."""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from overlap_train._data.batches import size_bytes
from overlap_train._data.iterators import end_iterators, next_batch
from overlap_train._data.pass_state import PassSeeds
from overlap_train._data.pipeline import (
    caches_draws,
    calls_python,
    captured_by,
    draws_lazily,
    is_asked_for_its_end,
    read_by,
    reorders,
    rows_of_batches,
)
from overlap_train._data.pipeline import keeps_more_than_variables as is_hidden
from overlap_train._keras.data import Pipeline, warn_out_of_data
from overlap_train._keras.evaluation import Pass

# A worker takes this fraction (1 / n) of the batches that are left, if their number is known.
_TURNS = 4


class StreamedBatches:
    """Batches that are drawn anew for each validation, by all workers from one iterator.

    The user's data sees one pass at a time: a worker turns to the next validation only when the pass of the
    one before has given its last batch, and the first worker to draw from a pass begins it. A generator has
    one iterator for good: another one would lose the batches that the first has prefetched, and their number
    depends on timing. As under Keras, each validation begins with the batches at which it looked beforehand;
    then the generator goes on where it stopped.
    """

    num_batches = None
    preparation = None

    def __init__(self, pipeline: Pipeline, dataset: Any, steps: int | None) -> None:
        self._pipeline, self._dataset = pipeline, dataset
        self.element_spec = self.raw_spec = self._dataset.element_spec
        # the names of variables and tables that the pipeline's functions read when it runs
        self.reads = read_by(self._dataset)
        self.written = [variable for variable in captured_by(self._dataset) if variable.written]
        # whether another `begin` gives the same batches again; of a generator, the first two
        self.rewindable = pipeline.restarts
        self.is_dataset = pipeline.is_dataset and isinstance(dataset, tf.data.Dataset)
        self.runs_python = pipeline.by_python or calls_python(dataset)
        # whether each pass over a dataset moves what the next one draws from: seeds, variables, a queue
        self.draws = self.is_dataset and (bool(self.written) or reorders(dataset) or is_hidden(dataset))
        # whether it does so as it is read, so that no other process gets there again
        self.redraws = self.draws and _draws_as_read(dataset)
        self.in_order = False  # whether a validation's batches are all drawn before the training goes on
        self.last_count = 0  # batches of the last validation
        self._num_iterators = 0
        self._seeds: PassSeeds | None = None
        self.steps = steps
        self.finds_end = pipeline.num_batches is None  # whether only drawing shows where the data ends
        self._has_warned = False
        self._first_batches: list[Any] = []
        self._lock = threading.Lock()  # for the four below; not held while a batch is drawn
        self._under_way: BatchStream | None = None
        self._only_iterator: Iterator[Any] | None = None
        self._newest: Iterator[Any] | None = None  # at which Keras may look again
        self._closings = 0  # a stream from before the last one begins nothing

    @property
    def first_rows(self) -> int | None:
        """Rows of the first batch, or None if they are not known beforehand."""
        return rows_of_batches(self._dataset)

    def begin(self) -> BatchStream:
        """Prepares one validation; call it in epoch order. Nothing happens before the first draw."""
        return BatchStream(functools.partial(self._begin_pass, self._closings), self.steps, self._end_pass)

    def close(self) -> None:
        """Ends the last pass and those prepared so far. Idempotent; does not wait for a draw."""
        with self._lock:
            self._closings += 1
        stream = self._give_up_pass()
        if stream is not None:
            stream.give_up()

    def end(self) -> None:
        """Ends the iterators, behind the last draw. Idempotent."""
        iterators = [self._under_way, self._only_iterator, self._newest]
        self._under_way = self._only_iterator = self._newest = None
        end_iterators(iterators)

    def _begin_pass(self, closings: int, stream: BatchStream) -> Iterator[Any]:
        self._give_up_pass()
        with self._lock:
            if closings != self._closings:
                return iter(())
            self._under_way = stream
            # Keras asks for the number of batches when it rewinds the data, before it tells the data. If a
            # `PyDataset` then says another number, a pass still has no more batches than it said first.
            length = self._pipeline.num_batches
            if length and not self._pipeline.is_dataset:
                stream.limit(length)
            if self._pipeline.looked_at:
                self._pipeline.begin_epoch()
                self._look()
            self._pipeline.end_epoch()
            self._pipeline.begin_epoch()
            if self.rewindable:
                return self._iterator()
            self._only_iterator = self._only_iterator or iter(self._dataset)
            return self._first_again(self._only_iterator)

    def _first_again(self, rest: Iterator[Any]) -> Iterator[Any]:
        """Yields the batches of a generator at which Keras looks beforehand, and then its next ones."""
        yield from tuple(self._first_batches)
        for batch in rest:
            if len(self._first_batches) < self._pipeline.peeked:
                self._first_batches.append(batch)
            yield batch

    def _give_up_pass(self) -> BatchStream | None:
        """Ends the pass that is under way, and returns it, if there is one."""
        with self._lock:
            stream = self._under_way
        if stream is not None:
            self._end_pass(stream)
        return stream

    def _end_pass(self, stream: BatchStream) -> None:
        """Tells the user's data once that a validation is over."""
        with self._lock:
            if self._under_way is not stream:
                return
            self._under_way = None
        self.last_count = stream.count
        length = self._pipeline.num_batches
        if self._pipeline.is_dataset and length and stream.count >= length:
            if is_asked_for_its_end(self._pipeline.dataset):
                stream.draw_beyond()
            # As Keras at the end of a pass: it draws from the seeds of the user's shuffles.
            self._iterator()
        self._pipeline.end_epoch()

    def _look(self) -> None:
        """Draws a batch that is not evaluated, as Keras does before each validation.

        It comes from a separate pass, or from the last one where a validation has a number of steps.
        """
        iterator = self._iterator() if self._newest is None else self._newest
        if self.redraws or self.written or not self.is_dataset:
            next_batch(iterator)

    def _iterator(self) -> Iterator[Any]:
        self._num_iterators += 1
        seeds = self._seeds
        iterator = iter(self._dataset) if seeds is None else seeds.iterator(self._num_iterators)
        if self._pipeline.looked_at and self.steps is not None:
            self._newest = iterator
        return iterator

    def warn_of_end(self) -> None:
        """Warns once, in Keras's words, that data of unknown length has ended."""
        if self.steps is None and self._pipeline.num_batches is None and not self._has_warned:
            self._has_warned = True
            warn_out_of_data(asked=False)

    def seed_passes(self) -> bool:
        """Gives shuffles without a seed one that is part of `standing`; returns whether that is possible.

        Call it before the first pass.
        """
        if self._seeds is None and self.is_dataset and not self.redraws:
            self._seeds = PassSeeds.of(self._dataset)
        return self._seeds is not None

    def standing(self) -> dict[str, Any]:
        """Returns what another process needs for its next pass to be the same. No draw is under way."""
        self._give_up_pass()
        seed = {} if self._seeds is None else {"own_seed": self._seeds.seed}
        return {"made": self._num_iterators, **seed}

    def passed(self, keras_pass: Pass) -> None:
        """Records a validation that Keras has made with its own iterators."""
        self._num_iterators += keras_pass.iterators
        self.last_count = keras_pass.batches

    def go_on(self, position: dict[str, Any]) -> None:
        """Makes the next pass the one that followed in another process. No draw is under way."""
        if self._seeds is not None:
            self._seeds.take(position.get("own_seed"))
        for _ in range(position["made"] - self._num_iterators):
            self._iterator()


@dataclass(eq=False)
class BatchStream:
    """The batches of one validation, each given to the first worker that asks."""

    _begin: Callable[[BatchStream], Iterator[Any]]
    _left: int | None
    _end: Callable[[BatchStream], None]

    def __post_init__(self) -> None:
        self._batches: Iterator[Any] | None = None
        self._changed = threading.Condition(threading.Lock())
        self._drawing = 0  # workers in `draw_some`
        self._ahead: _Ahead | None = None
        self.count = 0

    def limit(self, most: int) -> None:
        """Limits the number of batches; call it before the first draw."""
        self._left = most if self._left is None else min(self._left, most)

    def keep_ahead(self, limit_bytes: int) -> None:
        """Leaves the drawing to `draw_ahead`, which keeps up to `limit_bytes`, but one batch at least."""
        self._ahead = _Ahead(limit_bytes)

    def draw_ahead(self) -> None:
        """Draws all batches, for `draw` to give to the workers; returns when the last one has been drawn."""
        assert self._ahead is not None
        try:
            while (batch := self._draw()) is not None and self._ahead.put(batch):
                pass
        except BaseException as error:  # raised to the workers, who know which part it fails
            self._ahead.end(error)
        else:
            self._ahead.end()

    def give_up(self) -> None:
        """Gives no more batches to any worker; does not wait for the one that is being drawn."""
        if self._ahead is not None:
            self._ahead.end()

    def draw(self) -> Any | None:
        """Returns the next batch, or None when there is no more. May be called from any thread."""
        return self._draw() if self._ahead is None else self._ahead.take()

    def _draw(self) -> Any | None:
        with self._changed:
            if self._batches is None:
                self._batches = self._begin(self)
            batch = None if self._left == 0 else next_batch(self._batches)
            if batch is None:
                self._left = 0
                self._end(self)
                return None
            self.count += 1
            if self._left is not None:
                self._left -= 1
            return batch

    def draw_some(self, draw: Callable[[Any, int], tuple[int, bool]], most: int) -> bool:
        """Draws up to `most` batches of a dataset; returns whether more may follow.

        `draw` takes an iterator and a limit; it returns the number of batches and whether more may follow.
        May be called from several threads at once. The one that finds the end waits for the others, so that
        the next validation begins when this one's batches have been counted.
        """
        with self._changed:
            if self._batches is None:
                self._batches = self._begin(self)
            if self._left is not None:
                # Only a part, or the first worker would evaluate them all.
                most = min(most, -(-self._left // _TURNS))
                self._left -= most
            if not isinstance(self._batches, tf.data.Iterator):  # closed
                most = 0
            self._drawing += 1
        count, more = 0, False
        try:
            if most:
                count, more = draw(self._batches, most)
        finally:
            with self._changed:
                self._drawing -= 1
                self.count += count
                more = more and self._left != 0
                if not more:
                    self._left = 0
                    self._changed.wait_for(lambda: not self._drawing)
                    self._changed.notify_all()
                    self._end(self)
        return more

    def draw_beyond(self) -> None:
        """Draws one more batch of a dataset and drops it."""
        if isinstance(self._batches, tf.data.Iterator):
            next_batch(self._batches)

    def __iter__(self) -> Iterator[Any]:
        while (batch := self.draw()) is not None:
            yield batch


class _Ahead:
    """Batches that have been drawn and that no worker has requested yet. Thread-safe."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._size_bytes = 0
        self._batches: deque[tuple[Any, int]] = deque()
        self._changed = threading.Condition()
        self._ended = False
        self._error: BaseException | None = None

    def put(self, batch: Any) -> bool:
        """Adds a batch once there is room; returns False if the validation has ended."""
        leaves = tf.nest.flatten(batch, expand_composites=True)
        size = sum(size_bytes(leaf) for leaf in leaves if tf.is_tensor(leaf))
        with self._changed:
            self._changed.wait_for(
                lambda: self._ended or not self._batches or self._size_bytes + size <= self._limit_bytes
            )
            if self._ended:
                return False
            self._batches.append((batch, size))
            self._size_bytes += size
            self._changed.notify_all()
        return True

    def take(self) -> Any | None:
        """Returns the oldest batch, or None behind the last; raises what drawing the next one has raised."""
        with self._changed:
            self._changed.wait_for(lambda: self._batches or self._ended)
            if self._batches:
                batch, size = self._batches.popleft()
                self._size_bytes -= size
                self._changed.notify_all()
                return batch
            if self._error is not None:
                raise self._error
        return None

    def end(self, error: BaseException | None = None) -> None:
        """Ends the queue; only the first call counts."""
        with self._changed:
            if not self._ended:
                self._ended, self._error = True, error
            self._changed.notify_all()


def _draws_as_read(dataset: tf.data.Dataset) -> bool:
    """Whether a pass draws seeds, or fills a cache, as it is read.

    Then making as many iterators does not lead to the same draws.
    """
    if is_hidden(dataset) or caches_draws(dataset) or draws_lazily(dataset):
        return True
    return reorders(dataset) and dataset.cardinality() == tf.data.INFINITE_CARDINALITY
