"""Batches that are drawn anew are shared by all workers, and the user's data is told of each pass."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from tests.data.sources import X, Y, make


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


def test_a_pass_begins_when_it_is_drawn_from_and_its_end_is_told_once_however_it_comes():
    """By its last batch, by whoever has enough, by the next one that begins, or by the end of all."""
    data = Diary()
    batches = make(data)

    def told():
        events, data.events = data.events, []
        return events

    first, second = batches.begin(), batches.begin()
    assert told() == []
    assert first.draw() is not None
    assert told() == ["end", "begin"]
    assert len(list(iter(first.draw, None))) == 3
    first.finish()
    assert first.draw() is None
    assert told() == ["end"]
    second.draw()
    second.finish()
    assert second.draw() is None
    assert told() == ["end", "begin", "end"]
    given_up, following = batches.begin(), batches.begin()
    given_up.draw()
    following.draw()
    assert told() == ["end", "begin", "end", "end", "begin"]
    given_up.finish()
    assert told() == [], "that of another one"
    batches.close()
    batches.close()
    assert told() == ["end"]


def test_a_validation_whose_data_ends_early_is_told_by_the_batches_that_it_had():
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(5).filter(lambda x, y: True)
    for steps, count in ((2, 2), (3, 3), (9, 3)):
        batches = make(data, steps=steps, cache_bytes=0)
        stream = batches.begin()
        list(iter(stream.draw, None))
        assert batches.last_count == stream.count == count
        batches.close()


def test_no_pass_begins_after_the_end():
    data = Diary()
    batches = make(data)
    left = batches.begin()
    batches.close()
    assert left.draw() is None
    assert data.events == []
