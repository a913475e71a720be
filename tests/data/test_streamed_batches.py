"""Batches that are drawn anew are shared by all workers, and the user's data is told of each pass."""

import concurrent.futures
import itertools
import threading

import keras
import numpy as np
import pytest
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
    first.limit(0)
    assert first.draw() is None
    assert told() == ["end"]
    second.draw()
    second.limit(0)
    assert second.draw() is None
    assert told() == ["end", "begin", "end"]
    given_up, following = batches.begin(), batches.begin()
    given_up.draw()
    following.draw()
    assert told() == ["end", "begin", "end", "end", "begin"]
    given_up.limit(0)
    assert given_up.draw() is None
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
    batches = streamed()
    left = batches.begin()
    batches.close()
    assert draw_all(left) == ([], [])
    assert draw_all(batches.begin())[0], "one that is prepared later begins"


def draw_all(stream, most=4):
    """Draws some batches at a time, as compiled calls do; returns them, and how many each call might draw."""
    batches, limits = [], []

    def draw(iterator, limit):
        limits.append(limit)
        drawn = list(itertools.islice(iterator, limit))
        batches.extend(drawn)
        return len(drawn), len(drawn) == limit

    while stream.draw_some(draw, most):
        pass
    return batches, limits


def streamed(steps=None, rows=10):
    dataset = tf.data.Dataset.from_tensor_slices(np.zeros(rows, "float32"))
    return make(dataset.map(lambda x: x + tf.random.normal([])).batch(1), steps=steps)


def test_some_batches_at_a_time_are_all_of_them_once():
    batches = streamed()
    stream = batches.begin()
    taken, limits = draw_all(stream)
    assert (limits, len(taken), stream.count, batches.last_count) == ([4, 4, 4], 10, 10, 10)
    assert draw_all(stream) == ([], []), "nothing is left"


def test_of_a_known_number_nobody_takes_all():
    batches = streamed(steps=8)
    taken, limits = draw_all(batches.begin(), 100)
    assert limits == [2, 2, 1, 1, 1, 1]
    assert (len(taken), batches.last_count) == (8, 8)
    short = streamed(steps=20)
    draw_all(short.begin(), 100)
    assert short.last_count == 10


def test_who_finds_the_end_waits_for_those_who_still_draw():
    batches = streamed()
    stream = batches.begin()
    holds, go_on = threading.Event(), threading.Event()

    def slowly(iterator, most):
        next(iterator)
        holds.set()
        assert go_on.wait(30)
        return 1, True

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        slow = pool.submit(stream.draw_some, slowly, 1)
        assert holds.wait(30)
        others = pool.submit(draw_all, stream, 100)
        assert concurrent.futures.wait([others], 0.2).not_done
        go_on.set()
        slow.result(30)
        assert (len(others.result(30)[0]), batches.last_count) == (9, 10)


def test_nobody_gets_more_after_an_error_and_the_next_validation_begins_anew():
    batches = streamed()
    stream = batches.begin()

    def fails(iterator, most):
        next(iterator)
        raise RuntimeError("broken row")

    with pytest.raises(RuntimeError, match="broken row"):
        stream.draw_some(fails, 1)
    assert draw_all(stream)[0] == []
    assert len(draw_all(batches.begin())[0]) == 10
