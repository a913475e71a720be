"""Batches are drawn one by one as `next` would, and the end of a dataset is no error."""

from __future__ import annotations

import pytest
import tensorflow as tf

from overlap_train._data.batches import all_batches, next_batch


def numbers(count):
    return tf.data.Dataset.range(count)


def drawn(iterator):
    return [int(batch) for batch in iter(lambda: next_batch(iterator), None)]


@pytest.mark.parametrize(
    "made", [lambda: iter(numbers(3)), lambda: iter(range(3))], ids=["dataset", "Python"]
)
def test_it_draws_what_next_does_and_none_from_the_end_on(made):
    iterator = made()
    assert drawn(iterator) == [0, 1, 2]
    assert next_batch(iterator) is None


def test_all_batches_are_those_of_a_pass():
    assert [int(batch) for batch in all_batches(numbers(3))] == [0, 1, 2]
    assert all_batches(numbers(0)) == []


def test_structures_come_as_they_are():
    dataset = tf.data.Dataset.from_tensors(({"a": [1, 2]}, tf.ragged.constant([[1], [2, 3]]), ()))
    (features, ragged, nothing), expected = next_batch(iter(dataset)), next(iter(dataset))
    assert features["a"].numpy().tolist() == [1, 2]
    assert (ragged.to_list(), nothing) == (expected[1].to_list(), ())


def test_the_end_raises_nothing_inside_either(monkeypatch):
    raised = []
    monkeypatch.setattr(
        tf.errors.OutOfRangeError, "__init__", lambda self, *args, **options: raised.append(args)
    )
    assert drawn(iter(numbers(2))) == [0, 1]
    assert not raised


@pytest.mark.parametrize(
    ("error", "raised"), [(ValueError, tf.errors.InvalidArgumentError), (KeyError, tf.errors.UnknownError)]
)
def test_errors_of_the_users_functions_are_those_of_next(error, raised):
    def fail(_):
        raise error("x")

    dataset = numbers(2).map(lambda n: tf.py_function(fail, [n], tf.int64))
    for way in (lambda: next(iter(dataset), None), lambda: next_batch(iter(dataset))):
        with pytest.raises(raised):
            way()
