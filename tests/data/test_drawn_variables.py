"""The variables to which a pipeline writes: noted for each pass, and put back."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from overlap_train._data.pass_state import DrawnVariables
from overlap_train._data.pipeline import captured_by, keeps_more_than_variables


def counting():
    """Returns a dataset that counts what is drawn of it, and the count."""
    count = tf.Variable([0, 0], dtype=tf.int64)
    rows = tf.data.Dataset.range(3)
    return rows.map(lambda number: number + tf.reduce_sum(count.assign_add([1, 2]))), count


def test_a_pass_is_made_again_from_where_the_variables_stood():
    dataset, count = counting()
    drawn = DrawnVariables(captured_by(dataset))
    drawn.note(1)
    first = [int(each) for each in dataset]
    drawn.note(2)
    second = [int(each) for each in dataset]
    for number, expected in ((1, first), (2, second), (1, first)):
        drawn.put_back(number)
        assert [int(each) for each in dataset] == expected
    drawn.forget(2)
    with pytest.raises(ValueError, match="does not say where"):
        drawn.put_back(1)
    drawn.put_back(2)
    assert count.numpy().tolist() == [3, 6]


def test_another_process_takes_what_has_been_noted():
    dataset, _ = counting()
    drawn = DrawnVariables(captured_by(dataset))
    expected = [int(each) for each in dataset]
    drawn.note(4)
    then = [int(each) for each in dataset]
    again, count = counting()
    other = DrawnVariables(captured_by(again))
    other.take(4, drawn.noted(4))
    other.put_back(4)
    assert [int(each) for each in again] == then != expected
    assert count.numpy().tolist() == [6, 12]


@pytest.mark.parametrize(
    "stored",
    [
        *(None, 3, {}, [], [None], [np.int64(3)], ["ab"], (np.zeros(2, "int64"),)),
        *([np.zeros(2, "int32")], [np.zeros(3, "int64")], [np.zeros((2, 1), "int64")]),
        [np.zeros(2, "int64"), np.zeros(2, "int64")],
    ],
)
def test_what_is_not_of_these_variables_is_refused(stored):
    drawn = DrawnVariables(captured_by(counting()[0]))
    with pytest.raises(ValueError, match="the variables of its pipeline are invalid"):
        drawn.take(1, stored)


def test_what_no_variable_holds_is_known():
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, -1)

    def inserted(number):
        table.insert(number, number)
        return number

    rows = tf.data.Dataset.range(3)
    assert keeps_more_than_variables(rows.map(inserted))
    assert not keeps_more_than_variables(counting()[0])
    assert not keeps_more_than_variables(counting()[0].map(lambda number: 2 * number).batch(2))
    assert not keeps_more_than_variables(rows.map(table.lookup))


@pytest.mark.parametrize(
    ("open_shape", "fits"),
    [(None, [(), (3,), (2, 3)]), ([None], [(1,), (3,)]), ([2, None], [(2, 1), (2, 3)])],
)
def test_an_open_shape_takes_any_value_of_it(open_shape, fits):
    shape = tf.TensorShape(open_shape)
    variable = tf.Variable(tf.ones(fits[0]), shape=shape)
    drawn = DrawnVariables(captured_by(tf.data.Dataset.range(3).map(lambda _: variable.read_value())))
    for each in [(), (1,), (3,), (2, 1), (2, 3), (3, 1), (1, 1, 1)]:
        stored = [np.zeros(each, "float32")]
        if shape.is_compatible_with(each):
            drawn.take(1, stored)
            drawn.put_back(1)
            assert variable.read_value().shape == each
        else:
            with pytest.raises(ValueError, match="the variables of its pipeline are invalid"):
                drawn.take(1, stored)
    drawn.note(2)
    drawn.take(2, drawn.noted(2))
