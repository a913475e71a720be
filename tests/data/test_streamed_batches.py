"""Batches that are drawn anew are shared by all workers, and the user's data is told of each pass."""

from __future__ import annotations

import itertools
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train._data.shards import warn_if_short
from tests.data.batches import X, Y, make


class Diary(keras.utils.PyDataset):
    """Four batches; writes down what Keras tells it and what it is asked for."""

    def __init__(self):
        super().__init__()
        self.events = []

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return np.full((2, 1), index, "float32"), np.zeros(2)

    def on_epoch_begin(self):
        self.events.append("begin")

    def on_epoch_end(self):
        self.events.append("end")


def test_the_next_pass_begins_only_when_it_is_drawn_from():
    data = Diary()
    batches = make(data)
    first, second = batches.begin(), batches.begin()
    assert data.events == []
    assert first.draw() is not None
    assert data.events == ["end", "begin"]
    assert len(list(iter(first.draw, None))) == 3
    assert data.events == ["end", "begin", "end"]
    assert second.draw() is not None
    assert data.events == ["end", "begin", "end", "end", "begin"]
    batches.close()
    batches.close()
    assert data.events[5:] == ["end"]


def test_the_end_of_a_validation_is_told_once_however_it_ends():
    """By its last batch, by whoever has enough, or by the next one that begins."""
    data = Diary()
    batches = make(data)
    stream = batches.begin()
    list(iter(stream.draw, None))
    stream.finish()
    assert stream.draw() is None
    assert data.events == ["end", "begin", "end"]
    data.events.clear()
    stream = batches.begin()
    stream.draw()
    stream.finish()
    assert stream.draw() is None
    assert data.events == ["end", "begin", "end"]
    data.events.clear()
    given_up, following = batches.begin(), batches.begin()
    given_up.draw()
    following.draw()
    assert data.events == ["end", "begin", "end", "end", "begin"]
    given_up.finish()
    assert data.events[5:] == [], "that of another one"
    batches.close()


def test_a_validation_whose_data_ends_early_is_told_by_the_batches_that_it_had(recwarn):
    """Keras warns of it; of a validation that ends where it should, it does not."""
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(5).filter(lambda x, y: True)
    for steps, count in ((2, 2), (3, 3), (9, 3)):
        batches = make(data, steps=steps, cache_bytes=0)
        stream = batches.begin()
        list(iter(stream.draw, None))
        assert batches.last_count == stream.drawn == count
        if count < steps:
            with pytest.warns(UserWarning, match="Your input ran out of data"):
                warn_if_short(batches.last_count, steps)
        else:
            warn_if_short(batches.last_count, steps)
        warn_if_short(batches.last_count, None)
        batches.close()
    assert not recwarn.list


def test_no_pass_begins_after_the_end():
    data = Diary()
    batches = make(data)
    left = batches.begin()
    batches.close()
    assert left.draw() is None
    assert data.events == []


def test_workers_share_one_stream_and_every_batch_is_given_once():
    batches = make(Diary())
    stream, got, lock = batches.begin(), [], threading.Lock()

    def work():
        while (batch := stream.draw()) is not None:
            with lock:
                got.append(int(batch[0][0, 0]))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    batches.close()
    assert sorted(got) == [0, 1, 2, 3]
    assert stream.drawn == 4


def test_a_generator_goes_on_where_it_stopped():
    """With the very next batch: those that an iterator has fetched ahead are not lost with it."""

    def numbers():
        for i in itertools.count():
            yield np.full((2, 1), i, "float32"), np.zeros(2)

    batches = make(numbers(), steps=3)
    assert not batches.rewindable
    assert make(Diary()).rewindable
    passes = [[int(b[0][0, 0]) for b in iter(batches.begin().draw, None)] for _ in range(2)]
    first = passes[0][0]
    assert passes == [[first, first + 1, first + 2], [first + 3, first + 4, first + 5]]
    batches.close()
