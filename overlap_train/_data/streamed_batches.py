"""D: validation batches that are drawn anew for each validation, one by one, by all workers together."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from overlap_train._data.batches import end_iterators, next_batch, size_bytes
from overlap_train._data.pass_state import PassSeeds
from overlap_train._data.pipeline import (
    caches_draws,
    calls_python,
    captured_by,
    draws_lazily,
    is_asked_for_its_end,
    python_functions,
    read_by,
    reorders,
)
from overlap_train._data.pipeline import keeps_more_than_variables as is_hidden
from overlap_train._data.pipeline_parts import is_lookup, rows_of_batches
from overlap_train._keras.data import Pipeline, warn_out_of_data
from overlap_train._keras.training import Pass

__all__ = ["BatchStream", "StreamedBatches"]


# A worker takes one of so many parts of the batches that are left, if their number is known.
_TURNS = 4


class StreamedBatches:
    """Batches that are drawn anew for each validation, by all workers from one iterator.

    The user's data sees one pass at a time: a worker turns to the next validation only when the pass of
    the one before has given its last batch, and the next pass is begun by the first worker to draw from it.
    A generator is drawn from by one iterator for good: another one would lose the batches that the first has
    fetched ahead, and how many those are is a matter of luck. As under Keras, each validation begins with the
    batches at which it looked beforehand; behind them the generator goes on where it stopped.
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
        # whether it does so as it is read, so that it has to be read to get there again
        self.redraws = self.draws and _draws_as_read(dataset)
        self.in_order = False  # whether a validation's batches are all drawn before the training goes on
        self._made = 0
        self._seeds: PassSeeds | None = None
        self._passes: list[tuple[int, bool]] = []
        self._steps = steps
        self._lock = threading.Lock()  # for the three below; not held while a batch is drawn
        self._under_way: BatchStream | None = None
        self._only_iterator: Iterator[Any] | None = None
        self._newest: Iterator[Any] | None = None  # at which Keras may look again
        self._first_batches: list[Any] = []
        self._closed = False
        self._told_of_end = False
        self.last_count = 0

    @property
    def first_rows(self) -> int | None:
        """Rows of the first batch, or None if they are not known beforehand."""
        return rows_of_batches(self._dataset)

    @property
    def expected(self) -> int | None:
        """Batches of the next validation, if they can be counted beforehand."""
        counts = [count for count in (self._steps, self._pipeline.num_batches) if count]
        return min(counts, default=None)

    def begin(self, most: int | None = None) -> BatchStream:
        """Prepares one validation; call it in epoch order. Nothing happens before the first draw."""
        stream = BatchStream(self._begin_pass, self._steps, self._end_pass)
        if most is not None:
            stream.limit(most)
        return stream

    def stream(self) -> BatchStream:
        """Starts one validation, as `begin`."""
        return self.begin()

    def close(self) -> None:
        """Ends the last pass and lets none begin any more. Idempotent; does not wait for a draw."""
        with self._lock:
            self._closed = True
            under_way = self._under_way
        if under_way is not None:
            self._end_pass(under_way)
            under_way.give_up()

    def reopen(self) -> None:
        """Lets passes begin again."""
        with self._lock:
            self._closed = False

    def end(self) -> None:
        """Ends the iterators, behind the last draw. Idempotent."""
        iterators = [self._under_way, self._only_iterator, self._newest]
        self._under_way = self._only_iterator = self._newest = None
        end_iterators(iterators)

    def _begin_pass(self, stream: BatchStream) -> Iterator[Any]:
        with self._lock:
            under_way = self._under_way
        if under_way is not None:  # given up before its end
            self._end_pass(under_way)
        with self._lock:
            if self._closed:
                return iter(())
            self._under_way = stream
            # Keras asks how many batches there are when it rewinds the data, and then tells the data so. Of
            # a `PyDataset` that says another number behind that, a pass still has no more than it said.
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
        """Yields the batches of a generator at which Keras looks beforehand, and what follows of it."""
        yield from tuple(self._first_batches)
        for batch in rest:
            if len(self._first_batches) < self._pipeline.peeked:
                self._first_batches.append(batch)
            yield batch

    def _end_pass(self, stream: BatchStream) -> None:
        """Tells the user's data that a validation is over, once for each."""
        with self._lock:
            if self._under_way is not stream:
                return
            self._under_way = None
        self.last_count = stream.drawn
        length = self._pipeline.num_batches
        if self._pipeline.is_dataset and length and stream.drawn >= length:
            if is_asked_for_its_end(self._pipeline.dataset):
                stream.draw_beyond()
            # As Keras at the end of a pass: it draws from the seeds of the user's shuffles.
            self._iterator()
        if self.redraws:
            self._passes.append((stream.drawn, stream.ended))
        self._pipeline.end_epoch()

    def _look(self) -> None:
        """Draws a batch that is not evaluated, as Keras does before each validation.

        It comes from a pass of its own, or from the last one where a validation has a number of steps.
        """
        looked_at = self._iterator() if self._newest is None else self._newest
        if self.redraws or self.written or not self.is_dataset:
            next_batch(looked_at)

    def _iterator(self) -> Iterator[Any]:
        self._made += 1
        iterator = iter(self._dataset) if self._seeds is None else self._seeds.iterator(self._made)
        if self._pipeline.looked_at and self._steps is not None:
            self._newest = iterator
        return iterator

    def warn_of_end(self) -> None:
        """Warns as Keras does, but once, that data of unknown length has ended."""
        if self._steps is None and self._pipeline.num_batches is None and not self._told_of_end:
            self._told_of_end = True
            warn_out_of_data(asked=False)

    def seed_passes(self) -> bool:
        """Gives shuffles without a seed one that `standing` tells; returns whether that can be had.

        Call it before the first pass.
        """
        if self._seeds is None and self.is_dataset and not self.redraws:
            self._seeds = PassSeeds.of(self._dataset)
        return self._seeds is not None

    def standing(self) -> dict[str, Any]:
        """Returns what another process is told so that its next pass is the same; none is under way."""
        with self._lock:
            given_up = self._under_way
        if given_up is not None:
            self._end_pass(given_up)
        seed = {} if self._seeds is None else {"own_seed": self._seeds.seed}
        return {"made": self._made, "passes": list(self._passes), **seed}

    def passed(self, made: Pass) -> None:
        """Takes note of a validation that Keras has made, with iterators of its own."""
        self._made += made.iterators
        self.last_count = made.batches
        if self.redraws:
            self._passes.append((made.batches, made.ended))

    def go_on(self, stood: dict[str, Any]) -> None:
        """Makes the next pass the one that followed in another process. No draw is under way."""
        for count, ended in stood["passes"] if self.redraws else ():
            stream = self.begin()
            drawn = [stream.draw() is not None for _ in range(count)]
            if not all(drawn):
                raise ValueError(f"the validation data ended before batch {count} of a pass")
            if ended:
                stream.draw()
            stream.finish()
        if self._seeds is not None:
            self._seeds.take(stood.get("own_seed"))
        for _ in range(stood["made"] - self._made):
            self._iterator()


class BatchStream:
    """The batches of one validation, each given to the first worker that asks."""

    def __init__(
        self,
        begin: Callable[[BatchStream], Iterator[Any]],
        steps: int | None,
        end: Callable[[BatchStream], None] = lambda stream: None,
    ) -> None:
        self._begin = begin
        self._end = end
        self._batches: Iterator[Any] | None = None
        self._left = steps
        self._lock = threading.Lock()
        self._turn = threading.Condition(self._lock)
        self._drawing = 0
        self._ahead: _Ahead | None = None
        self.drawn = 0
        self.ended = False

    def limit(self, most: int) -> None:
        """Limits the number of batches; call it before the first draw."""
        self._left = most if self._left is None else min(self._left, most)

    def keep_ahead(self, limit_bytes: int) -> None:
        """Leaves the drawing to `draw_ahead`, which keeps batches up to a size, and at least one."""
        self._ahead = _Ahead(limit_bytes)

    def draw_ahead(self) -> None:
        """Draws all batches, which `draw` gives to the workers; returns when the last one has been drawn."""
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
        with self._lock:
            if self._batches is None:
                self._batches = self._begin(self)
            batch = None if self._left == 0 else next_batch(self._batches)
            if batch is None:
                self.ended, self._left = self.ended or self._left != 0, 0
                self._end(self)
                return None
            self.drawn += 1
            if self._left is not None:
                self._left -= 1
            return batch

    def draw_some(self, draw: Callable[[Any, int], tuple[int, bool]], most: int) -> bool:
        """Has batches of a dataset drawn; returns whether there may be more.

        May be called from any thread; several draw at once. Who finds the end waits for the others, so that
        the next validation begins when this one's batches have been counted.
        """
        with self._turn:
            if self._batches is None:
                self._batches = self._begin(self)
            if self._left is not None:
                # Each a part, or the first to come would evaluate them all.
                most = min(most, -(-self._left // _TURNS))
                self._left -= most
            if not isinstance(self._batches, tf.data.Iterator):  # closed
                most = 0
            self._drawing += 1
        drawn, more = 0, False
        try:
            if most:
                drawn, more = draw(self._batches, most)
        finally:
            with self._turn:
                self._drawing -= 1
                self.drawn += drawn
                if not more:
                    self.ended, self._left = self.ended or most > 0, 0
                more = more and self._left != 0
                if not more:
                    self._turn.wait_for(lambda: not self._drawing)
                    self._turn.notify_all()
                    self._end(self)
        return more

    def draw_beyond(self) -> None:
        """Draws one more batch of a dataset and drops it."""
        if isinstance(self._batches, tf.data.Iterator):
            next_batch(self._batches)

    def finish(self) -> None:
        """Ends the validation: no worker draws any more."""
        with self._lock:
            self._left = 0
            self._end(self)


class _Ahead:
    """Batches that have been drawn and that no worker has asked for yet. Thread-safe."""

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
        """Says that no more will be put. The first call counts."""
        with self._changed:
            if not self._ended:
                self._ended, self._error = True, error
            self._changed.notify_all()


def _draws_as_read(dataset: tf.data.Dataset) -> bool:
    """Whether passes that each have an iterator of their own draw seeds, or fill a cache, as they are read.

    To make as many iterators is then not enough for what follows to be the same. What Python makes is not
    read again: its state is found otherwise, or not.
    """
    if any(each is not None and not is_lookup(each) for each in python_functions(dataset)):
        return False
    endless = dataset.cardinality() == tf.data.INFINITE_CARDINALITY
    return (
        is_hidden(dataset)
        or caches_draws(dataset)
        or draws_lazily(dataset)
        or (endless and reorders(dataset))
    )
