"""Arrays are held as they are, and an order of their rows can be taken again."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from overlap_train import zero_copy
from overlap_train._data.iterator_feed import make_feed
from overlap_train._keras.data import recognize
from tests.data.feeds import X, Y, feed_of


@pytest.mark.parametrize("shuffle", [True, "batch"])
def test_an_array_feed_repeats_its_orders(shuffle):
    feed = feed_of(X, Y, batch_size=4, shuffle=shuffle)
    orders = [feed.new_pass() for _ in range(4)]
    assert all(sorted(order.numpy()) == list(range(13)) for order in orders)
    feed.rewind(1)
    assert all(np.array_equal(feed.new_pass(), order) for order in orders[1:])
    assert feed.drawn == 4


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("shuffle", [True, "batch"])
def test_what_is_remembered_gives_another_process_the_same_orders(seed, shuffle):
    tf.random.set_seed(seed)
    here, there = (feed_of(X, Y, batch_size=4, shuffle=shuffle) for _ in range(2))
    orders = [here.new_pass() for _ in range(4)]
    there.recall(2, here.remembered(begun=True, seen=1))
    there.reopen(2, 1)
    assert all(np.array_equal(there.new_pass(), order) for order in orders[2:])


def test_a_function_that_prepares_rows_is_traced_and_names_what_it_uses():
    scale = tf.Variable(2.0, name="scale")
    feed = feed_of(X, Y, batch_size=4, shuffle=False, preprocess=lambda x, y: (x * scale, y))
    assert [variable.name for variable in feed.preparation.variables] == ["scale"]
    assert feed.preparation.effects == ()

    @tf.function(autograph=False)
    def first(order, tensors):
        return feed.batch(order, tf.constant(0, tf.int64), tensors)[0]

    order = feed.new_pass()
    for value in (2.0, 3.0):
        scale.assign(value)
        np.testing.assert_array_equal(first(order, feed.tensors), X[:4] * value)
    random = feed_of(X, Y, batch_size=4, preprocess=lambda x, y: (x + tf.random.normal([2]), y))
    assert [effect.operation for effect in random.preparation.effects] == ["RandomStandardNormal"]
    assert feed_of(X, Y, batch_size=4).preparation is None


def test_arrays_keep_their_dtype_and_uneven_batches_have_no_static_size():
    pixels = np.zeros((8, 3, 3, 1), "uint8")
    feed = feed_of(pixels, np.zeros(8, "int64"), batch_size=4)
    assert feed.tensors[0].dtype == tf.uint8
    assert feed.element_spec[0] == tf.TensorSpec([4, 3, 3, 1], tf.uint8)
    assert feed_of(X, Y, batch_size=4).element_spec[0] == tf.TensorSpec([None, 2], tf.float32)


@pytest.mark.parametrize("lend", ["never", "view of a writable array"])
def test_who_writes_to_an_array_changes_nothing_as_in_keras(lend):
    rows = zero_copy.empty(X.shape)  # aligned, so that it could be shared
    rows[...] = X
    given = rows
    if lend != "never":
        given = rows[:]
        given.flags.writeable = False
    feed = feed_of(given, Y, batch_size=4, shuffle=False)
    rows[...] = -1
    np.testing.assert_array_equal(feed.tensors[0], X)


@pytest.mark.parametrize(
    "remembered",
    [
        *({"seed": seed} for seed in ("a", True, 1.0, 1 << 64, 10**5000)),
        *({"own_seed": seed} for seed in ("a", True, 1.0, -1, 1 << 63, 10**5000, None)),
        {},
    ],
    ids=lambda remembered: f"{[type(part).__name__ for part in remembered.values()]}",
)
def test_what_no_rows_have_remembered_is_refused(remembered):
    rows = recognize(np.zeros((4, 1)), np.zeros(4), batch_size=2, shuffle=True)
    feed = make_feed(rows, hold_in_memory=lambda size: True)
    for call in (lambda: feed.check(remembered, begun=True), lambda: feed.recall(1, remembered)):
        with pytest.raises(ValueError, match=r"of its rows is no|in which orders its rows come"):
            call()
    for fitting in ({"seed": -3}, {"seed": None, "own_seed": 3}):
        feed.check(fitting, begun=True)
