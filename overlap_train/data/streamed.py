"""D: validation batches that are drawn anew for each validation, one by one, by all workers together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

from overlap_train import _keras
from overlap_train.data.pipeline import without_autotune
from overlap_train.data.preprocessing import Preprocess, map_batches

__all__ = ["BatchStream", "StreamedBatches"]


class StreamedBatches:
    """Batches that are drawn anew for each validation, by all workers from one iterator.

    The user's data sees one pass at a time: a worker turns to the next validation only when the pass of
    the one before has given its last batch, and the next pass is begun by the first worker to draw from it.

    Attributes:
        rewindable: whether another `begin` starts from the first batch again; a generator goes on where
            it stopped, as in Keras.
    """

    num_batches = None

    def __init__(
        self, adapter: _keras.DataAdapter, steps: int | None, preprocess: Preprocess | None = None
    ) -> None:
        self._adapter = adapter
        self._dataset = without_autotune(map_batches(preprocess, adapter.get_tf_dataset()))
        self.element_spec = self._dataset.element_spec
        self._steps = steps
        self._lock = threading.Lock()  # for the two below; not held while a batch is drawn
        self._last: BatchStream | None = None
        self._closed = False
        self.rewindable = _keras.is_rewindable_adapter(adapter)

    def begin(self) -> BatchStream:
        """Prepares one validation; call it in epoch order. Nothing happens before the first draw."""
        return BatchStream(self._begin_pass, self._steps)

    def stream(self) -> BatchStream:
        """Starts one validation, as `begin`."""
        return self.begin()

    def close(self) -> None:
        """Ends the last pass and lets none begin any more. Idempotent; does not wait for a draw."""
        with self._lock:
            self._closed = True
            self._end_pass()

    def _begin_pass(self, stream: BatchStream) -> Iterator[Any]:
        with self._lock:
            if self._closed:
                return iter(())
            self._end_pass()
            self._adapter.on_epoch_end()  # Keras does so when it rewinds the data
            self._adapter.on_epoch_begin()
            self._last = stream
            return iter(self._dataset)

    def _end_pass(self) -> None:
        last, self._last = self._last, None
        if last is None:
            return
        length = self._adapter.num_batches
        if _keras.is_tf_dataset_adapter(self._adapter) and length and last.drawn >= length:
            iter(
                self._dataset
            )  # as Keras at the end of a pass: it draws from the seeds of the user's shuffles
        self._adapter.on_epoch_end()


class BatchStream:
    """The batches of one validation, each given to the first worker that asks.

    Attributes:
        drawn: batches given so far.
    """

    def __init__(self, begin: Callable[[BatchStream], Iterator[Any]], steps: int | None) -> None:
        self._begin = begin
        self._batches: Iterator[Any] | None = None
        self._left = steps
        self._lock = threading.Lock()
        self.drawn = 0

    def draw(self) -> Any | None:
        """Returns the next batch, or None when there is no more. May be called from any thread."""
        with self._lock:
            if self._left == 0:
                return None
            if self._batches is None:
                self._batches = self._begin(self)
            batch = next(self._batches, None)
            if batch is None:
                self._left = 0
                return None
            self.drawn += 1
            if self._left is not None:
                self._left -= 1
            return batch
