"""Batches that cannot be drawn again come again after a rollback, and no others are lost."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from overlap_train._data.cursor import Cursor
from overlap_train._data.replay_buffer import ReplayBuffer
from tests.data.sources import feed_of, rows, train

ROW_BYTES = 2 * 4 + 8


def counting():
    for number in itertools.count():
        yield np.full((2, 2), number, "float32"), np.full(2, number)


def ragged(labels):
    inputs = tf.ragged.constant([[1.0], [], [2.0, 3.0]] * 4)
    text = tf.constant(["a", "bcd", ""] * 4)
    dataset = tf.data.Dataset.from_tensor_slices(({"rows": inputs, "text": text}, labels))
    return dataset.shuffle(12, seed=1).cache().shuffle(12, seed=2).batch(2)


def twice_shuffled():
    return rows().shuffle(13, seed=5).batch(4).shuffle(4, seed=6)


def kept(data, steps=None, limit_bytes=1 << 20):
    feed = feed_of(data, steps=steps)
    assert not feed.rewindable
    assert feed.keep(limit_bytes)
    return feed, Cursor(feed, steps)


@pytest.mark.parametrize("data", [counting, twice_shuffled, lambda: ragged(np.arange(12))])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("back_to", [0, 1, 2])
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.by_default("0-True-twice_shuffled")
def test_epochs_that_are_taken_back_bring_the_same_batches(data, known, back_to):
    steps = 3 if known or data is counting else None
    _, cursor = kept(data(), steps)
    _, other = kept(data(), steps)
    expected = [train(other) for _ in range(6)]
    states, epochs = [cursor.state()], []
    for _ in range(3):
        epochs.append(train(cursor))
        states.append(cursor.state())
    train(cursor, 2, ends=False)
    for _ in range(2):  # a second rollback finds the replayed batches
        cursor.restore(states[back_to])
        train(cursor, 1, ends=False)
    cursor.restore(states[back_to])
    epochs[back_to:] = [train(cursor) for _ in range(6 - back_to)]
    assert epochs == expected


def test_what_nobody_goes_back_to_is_let_go():
    feed, cursor = kept(counting(), 3)
    train(cursor, 3)
    assert feed.replay.size_bytes == 3 * 2 * ROW_BYTES
    state = cursor.state()
    train(cursor, 3)
    cursor.forget(state)
    assert feed.replay.size_bytes == 3 * 2 * ROW_BYTES
    cursor.forget_used()
    assert feed.replay.size_bytes == 0
    assert train(cursor, 3) == [[6, 6], [7, 7], [8, 8]]


def test_a_call_draws_no_more_than_may_be_kept_and_none_behind_what_is_replayed():
    feed, cursor = kept(counting(), 9, limit_bytes=5 * 2 * ROW_BYTES)
    begin = cursor.state()
    train(cursor, 1, ends=False)
    assert cursor.most_steps() == 4
    assert not feed.replay.full
    for _ in range(4):
        next(cursor.current_pass)
        cursor.advance(1)
    assert feed.replay.full
    assert cursor.most_steps() == 1
    cursor.restore(begin)
    cursor.begin_epoch()
    assert not feed.replay.full
    assert cursor.most_steps() == 5


def test_what_reads_a_variable_is_not_kept():
    scale = tf.Variable(2.0)
    feed = feed_of(rows().shuffle(13).map(lambda x, y: (x * scale, y)).batch(4).shuffle(2))
    assert not feed.keep(1 << 20)


def test_arrays_that_their_owner_fills_anew_are_kept_as_they_were():
    buffer = np.zeros((2, 2), "float32")

    def filling():
        for number in range(9):
            buffer[:] = number
            yield buffer

    dataset = tf.data.Dataset.from_generator(filling, output_signature=tf.TensorSpec([None, 2]))
    kept = ReplayBuffer(dataset, 1 << 20, copies=True)
    opened = kept.open(1)
    for number in range(3):
        assert float(next(opened.iterator)[0, 0]) == number
    kept.used(opened, 0, 3)
    kept.rewind(1, 0)
    opened = kept.open(1)
    assert [float(next(opened.iterator)[0, 0]) for _ in range(3)] == [0, 1, 2]
