"""Orders of the rows: Keras's where a seed says which, drawn ahead where none does."""

from __future__ import annotations

import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train._data import row_orders
from overlap_train._data.row_orders import RowOrders
from overlap_train._keras.data import recognize


def orders_of(rows, batch_size, shuffle):
    return RowOrders(recognize(np.zeros((rows, 1)), batch_size=batch_size, shuffle=shuffle))


@pytest.fixture
def unseeded():
    tf.random.set_seed(None)
    yield
    keras.utils.set_random_seed(0)


@pytest.mark.parametrize("shuffle", [True, "batch"])
def test_without_a_seed_each_pass_has_another_order(unseeded, shuffle):
    found = orders_of(100, 4, shuffle)
    passes = [found[number].numpy().tolist() for number in range(4)]
    assert all(sorted(order) == list(range(100)) for order in passes)
    assert len({tuple(order) for order in passes}) == 4
    assert found[2].numpy().tolist() == passes[2], "kept for a rollback"


def test_two_runs_without_a_seed_differ(unseeded):
    assert orders_of(100, 4, True)[0].numpy().tolist() != orders_of(100, 4, True)[0].numpy().tolist()


@pytest.mark.parametrize("shuffle", [True, "batch", False])
def test_a_seed_gives_all_passes_one_order_which_is_drawn_once(shuffle, monkeypatch):
    """As by Keras, whose pipeline begins from the global seed in each epoch: test_training_data.py."""
    monkeypatch.setattr(row_orders, "in_background", lambda *_: pytest.fail("nothing is left to be drawn"))
    keras.utils.set_random_seed(3)
    found = orders_of(20, 4, shuffle)
    first = found[0]
    assert all(found[number] is first for number in range(1, 4))
    for number in range(4, 50):
        found.forget(number - 1)
        assert found[number] is first
    assert len(found) == 2


def test_asking_for_the_seed_leaves_what_is_drawn_next_as_it_was():
    keras.utils.set_random_seed(3)
    expected = tf.random.uniform([4]).numpy()
    keras.utils.set_random_seed(3)
    orders_of(20, 4, True)
    np.testing.assert_array_equal(tf.random.uniform([4]).numpy(), expected)


def test_a_seed_that_comes_later_changes_nothing(unseeded):
    """Keras's pipeline has its seeds from when it was made."""
    found = orders_of(100, 4, True)
    keras.utils.set_random_seed(3)
    assert found[0].numpy().tolist() != found[1].numpy().tolist()


def test_the_thread_that_draws_ends_by_itself(unseeded):
    found = orders_of(100, 4, True)
    found[0]
    for thread in threading.enumerate():
        if thread.name.startswith("overlap-order"):
            thread.join(30)
            assert not thread.is_alive()
