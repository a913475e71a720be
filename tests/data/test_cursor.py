"""The cursor makes new passes exactly when `keras.Model.fit` makes them, and goes back to where it was."""

from __future__ import annotations

import pytest
import tensorflow as tf

from overlap_train._data.array_feed import make_feed
from overlap_train._data.cursor import Cursor
from overlap_train._data.feed import Feed
from overlap_train._keras.data import recognize


class CountingFeed(Feed):
    """Passes are lists of "pass.batch"; writes down what it is told."""

    rewindable = True

    def __init__(self, num_batches):
        super().__init__()
        self.num_batches = num_batches
        self.events = []

    def describe(self):
        return "counted"

    def new_pass(self):
        self.num_passes += 1
        self.events.append(f"pass {self.num_passes}")
        return [f"{self.num_passes}.{i}" for i in range(self.num_batches)]

    def rewind(self, num_passes):
        self.events.append(f"rewind {num_passes}")
        self.num_passes = num_passes


def train_epoch(cursor, feed):
    """Makes the steps of an epoch one by one and returns the batches."""
    cursor.begin_epoch()
    used = []
    while cursor.remaining() != 0:
        if cursor.seen == feed.num_batches:
            cursor.exhausted()
            break
        used.append(cursor.current_pass[cursor.seen])
        cursor.advance(1)
    cursor.end_epoch()
    return used


def test_steps_per_epoch_goes_on_in_the_middle_of_a_pass():
    feed = CountingFeed(5)
    cursor = Cursor(feed, 2)
    assert cursor.steps_per_epoch == 2
    assert [train_epoch(cursor, feed) for _ in range(2)] == [["1.0", "1.1"], ["1.2", "1.3"]]
    with pytest.warns(UserWarning, match="Your input ran out of data"):
        assert train_epoch(cursor, feed) == ["1.4"]
    assert train_epoch(cursor, feed) == ["2.0", "2.1"]


@pytest.mark.parametrize("steps_per_epoch", [None, 2, 3, 5])
@pytest.mark.parametrize("back_to", [1, 2])
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_epochs_after_a_restore_use_the_same_batches(steps_per_epoch, back_to):
    feed = CountingFeed(5)
    cursor = Cursor(feed, steps_per_epoch)
    states, epochs = [cursor.state()], []
    for _ in range(4):
        epochs.append(train_epoch(cursor, feed))
        states.append(cursor.state())
    cursor.restore(states[back_to])
    assert [train_epoch(cursor, feed) for _ in range(4 - back_to)] == epochs[back_to:]
    assert cursor.state() == states[-1]


def test_a_restore_that_no_epoch_follows_touches_no_data():
    feed = CountingFeed(5)
    cursor = Cursor(feed, 2)
    train_epoch(cursor, feed)
    state = cursor.state()
    train_epoch(cursor, feed)
    before = list(feed.events)
    cursor.restore(state)
    assert feed.events == before


@pytest.mark.parametrize("endless", [False, True])
def test_a_real_iterator_is_advanced_to_the_batch_where_it_stood(endless):
    data = tf.data.Dataset.range(10).shuffle(10, seed=4)
    data = (data.repeat() if endless else data).batch(2)
    feed = make_feed(recognize(data, steps=2), hold_in_memory=lambda _: True)
    assert feed.rewindable
    cursor = Cursor(feed, 2)

    def epoch():
        cursor.begin_epoch()
        used = [next(cursor.current_pass).numpy().tolist() for _ in range(2)]
        cursor.advance(2)
        cursor.end_epoch()
        return used

    epoch()
    state = cursor.state()
    second = epoch()
    cursor.restore(state)
    assert epoch() == second
