"""Training arrays: held as they are, lent where they can be, and taken in Keras's order."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import Trainer, zero_copy
from overlap_train._data import array_feed
from overlap_train._data.array_feed import RowOrders, make_feed
from overlap_train._data.batches import copied_bytes
from overlap_train._keras.data import recognize, row_order
from tests.data.sources import X, Y, feed_of, one_pass
from tests.pools import sequential


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("shuffle", [True, "batch"])
def test_what_is_remembered_gives_another_process_the_same_orders(seed, shuffle):
    tf.random.set_seed(seed)
    here, there = (feed_of(X, Y, batch_size=4, shuffle=shuffle) for _ in range(2))
    orders = [here.new_pass() for _ in range(4)]
    assert all(sorted(order.numpy()) == list(range(13)) for order in orders)
    there.recall(2, here.memory(begun=True))
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


@pytest.mark.parametrize("own_seed", [None, "a", -1, 1 << 63])
def test_what_no_rows_have_remembered_is_refused(own_seed):
    feed = feed_of(X, Y, batch_size=4, shuffle=True)
    with pytest.raises(ValueError, match="in which orders its rows come"):
        feed.recall(1, {"own_seed": own_seed})


def orders_of(rows, batch_size, shuffle):
    return RowOrders(recognize(np.zeros((rows, 1)), batch_size=batch_size, shuffle=shuffle))


@pytest.fixture
def unseeded(unseeded, monkeypatch):
    monkeypatch.setattr(array_feed, "row_shuffling", lambda: "random")  # as up to Keras 3.15


@pytest.mark.parametrize("shuffle", [True, "batch"])
def test_without_a_seed_each_pass_has_another_order(unseeded, shuffle):
    orders = orders_of(102, 4, shuffle)
    passes = [orders[number].numpy().tolist() for number in range(4)]
    assert all(sorted(order) == list(range(102)) for order in passes)
    if shuffle == "batch":  # of a last batch that is smaller, too
        assert all(row // 4 == place // 4 for order in passes for place, row in enumerate(order))
    assert len({tuple(order) for order in passes}) == 4
    again = orders_of(102, 4, shuffle)
    again.draw_under(None, orders.own_seed)
    assert [again[number].numpy().tolist() for number in (2, 0, 1, 3)] == [passes[n] for n in (2, 0, 1, 3)]


def test_where_keras_shuffles_without_drawing_all_passes_and_runs_have_its_order(unseeded, monkeypatch):
    monkeypatch.setattr(array_feed, "row_shuffling", lambda: "fixed")
    monkeypatch.setattr(array_feed, "row_order", lambda *_: tf.data.Dataset.range(9, -1, -1).batch(4))
    passes = [orders_of(10, 4, True)[number].numpy().tolist() for number in range(3)]
    assert passes == [[*range(9, -1, -1)]] * 3
    array_feed._cached_order.cache_clear()  # of an order that is none of Keras's


@pytest.mark.nightly
@pytest.mark.parametrize("largest", [0, 1 << 20])
def test_what_is_remembered_is_the_order_of_keras_for_each_seed_and_kind(largest, monkeypatch):
    """Each one twice: what is remembered of one is not taken for another."""
    monkeypatch.setattr(array_feed, "_MOST_CACHED", largest)
    kinds = [(20, 4, True), (20, 5, True), (21, 4, True), (20, 4, "batch"), (20, 5, "batch"), (20, 4, False)]
    for seed in (3, 4, 3):
        for rows, batch_size, shuffle in 2 * kinds:
            keras.utils.set_random_seed(seed)
            expected = [*row_order(rows, batch_size, shuffle)]
            keras.utils.set_random_seed(seed)
            orders = orders_of(rows, batch_size, shuffle)
            np.testing.assert_array_equal(orders[0], np.concatenate([np.ravel(batch) for batch in expected]))


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("shuffle", [True, False])
def test_a_second_training_makes_no_pipeline(seed, shuffle, monkeypatch, unseeded):
    """It took most of a short fit, and TensorFlow keeps something of every pipeline for good."""
    tf.random.set_seed(seed)
    first = orders_of(30, 4, shuffle)[0]
    monkeypatch.setattr(array_feed, "row_order", lambda *_: pytest.fail("a pipeline"))
    second = orders_of(30, 4, shuffle)[0]
    assert sorted(second.numpy()) == list(range(30))
    assert np.array_equal(first, second) == (seed is not None or not shuffle)


def test_asking_for_the_seed_leaves_what_is_drawn_next_as_it_was():
    keras.utils.set_random_seed(3)
    expected = tf.random.uniform([4]).numpy()
    keras.utils.set_random_seed(3)
    orders_of(20, 4, True)
    np.testing.assert_array_equal(tf.random.uniform([4]).numpy(), expected)


@pytest.mark.parametrize("largest", [0, 1 << 20])
@pytest.mark.parametrize("now", [None, 7])
def test_orders_are_drawn_under_the_seed_of_a_training_that_goes_on(now, largest, unseeded, monkeypatch):
    monkeypatch.setattr(array_feed, "_MOST_CACHED", largest)
    keras.utils.set_random_seed(3)
    of_three, expected = orders_of(30, 4, True)[0].numpy(), tf.random.uniform([4]).numpy()
    tf.random.set_seed(now)
    orders = orders_of(30, 4, True)
    orders.draw_under(3)
    assert orders.seed == 3
    np.testing.assert_array_equal(orders[0].numpy(), of_three)
    assert array_feed._global_seed() == now
    keras.utils.set_random_seed(3)
    orders.draw_under(None)
    assert orders[0].numpy().tolist() != orders[1].numpy().tolist()
    np.testing.assert_array_equal(tf.random.uniform([4]).numpy(), expected)


@pytest.mark.parametrize("seed", [np.int64(3), np.int32(3)])
def test_a_seed_of_numpys_is_remembered_as_a_number(seed, unseeded):
    tf.random.set_seed(seed)
    arrays = recognize(np.zeros((6, 1)), batch_size=2, shuffle=True)
    remembered = make_feed(arrays, hold_in_memory=lambda size: True).memory(begun=False)
    assert remembered == {"seed": 3, "own_seed": None}
    assert type(remembered["seed"]) is int


def mapped(tmp_path, array):
    np.save(tmp_path / "rows.npy", array)
    return np.load(tmp_path / "rows.npy", mmap_mode="r")


def frozen(memory):
    """Return an array on aligned memory that it must not write."""
    start = -np.frombuffer(memory, np.uint8).ctypes.data % 64
    array = np.frombuffer(memory, np.float32, 64, start)
    array.flags.writeable = False
    return array


@pytest.mark.cpu_only("a GPU has copies of the arrays")
def test_a_mapped_file_is_read_where_it_lies(tmp_path):
    rows = mapped(tmp_path, X)
    before = zero_copy.statistics()
    feed = feed_of(rows, Y, batch_size=4, shuffle=False)
    assert zero_copy.statistics().copied_bytes == before.copied_bytes
    assert zero_copy.as_array(feed.tensors[0]).ctypes.data == rows.ctypes.data
    assert one_pass(feed) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12]]


@pytest.mark.cpu_only("a GPU has copies of the arrays")
def test_a_mapped_file_does_not_count_as_memory_but_what_cannot_be_lent_does(tmp_path):
    asked = []
    make_feed(recognize(mapped(tmp_path, X), Y), hold_in_memory=asked.append)
    assert asked == [Y.nbytes]
    assert copied_bytes(mapped(tmp_path, X)) == 0
    assert copied_bytes(mapped(tmp_path, X)[:, :1]) == 13 * 4, "not contiguous"
    assert copied_bytes(mapped(tmp_path, X)[1:]) == 12 * 8, "not aligned"
    assert copied_bytes(X) == X.nbytes, "writable"
    assert copied_bytes(shown := frozen(bytearray(1024))) == shown.nbytes, "written by others"
    assert copied_bytes(shown := frozen(memoryview(bytearray(1024)).toreadonly())) == shown.nbytes


def test_a_mapped_file_that_is_written_meanwhile_ends_the_training(tmp_path):
    rows = mapped(tmp_path, np.ones((64, 12), "float32"))
    trainer = Trainer(sequential("sgd"))

    def write(*_):
        again = np.load(tmp_path / "rows.npy", mmap_mode="r+")
        again *= 2
        again.flush()

    def replace(*_):
        np.save(tmp_path / "other.npy", np.zeros((64, 12), "float32"))
        (tmp_path / "other.npy").replace(tmp_path / "rows.npy")

    def fit(act):
        acts = keras.callbacks.LambdaCallback(on_epoch_end=act)
        trainer.fit(rows, np.zeros(64), epochs=3, callbacks=[acts], verbose=0)

    with pytest.raises(ValueError, match="a mapped file was written"):
        fit(write)
    fit(replace)  # which leaves the rows that are mapped
    assert copied_bytes(tf.constant(X)) == X.nbytes, "a tensor of the user's"
