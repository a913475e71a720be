"""What is given to `fit`, as Keras takes it; each test names what breaks when Keras moves it."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train._keras import data as keras_data
from tests.networks import FEATURES, arrays

X, Y = arrays(20)


def dataset():
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(4)


def generator():
    while True:
        yield X[:4], Y[:4]


class Rows(keras.utils.PyDataset):
    def __len__(self):
        return 5

    def __getitem__(self, index):
        return X[index * 4 : index * 4 + 4], Y[index * 4 : index * 4 + 4]


@pytest.mark.parametrize(
    ("data", "arrays_", "dataset_", "rewindable", "batches"),
    [
        ((X, Y), True, False, True, 5),
        ((dataset(),), False, True, True, 5),
        ((Rows(),), False, False, True, 5),
        ((generator(),), False, False, False, None),
    ],
    ids=["arrays", "dataset", "PyDataset", "generator"],
)
def test_adapters_are_told_apart(data, arrays_, dataset_, rewindable, batches):
    """get_data_adapter and the adapter classes: without them no data of the user's can be read."""
    adapter = keras_data.adapt(*data, batch_size=4 if arrays_ else None)
    assert keras_data.is_array_adapter(adapter) is arrays_
    assert keras_data.is_tf_dataset_adapter(adapter) is dataset_
    assert keras_data.is_rewindable_adapter(adapter) is rewindable
    assert adapter.num_batches == batches
    x, y = next(iter(adapter.get_tf_dataset()))
    np.testing.assert_allclose(x, X[:4])
    np.testing.assert_allclose(y, Y[:4])


def test_shuffle_is_dropped_for_data_that_brings_its_own_order():
    """Else Keras warns, and warnings are errors here."""
    for data in (dataset(), generator()):
        keras_data.adapt(data, shuffle=True)


def test_arrays_come_as_keras_batches_them():
    """ArrayDataAdapter._inputs and array_slicing.convert_to_sliceable."""
    adapter = keras_data.adapt(
        X.astype("float64"), Y, batch_size=4, class_weight={0: 1.0, 1: 2.0, 2: 1.0, 3: 1.0}
    )
    x, y, weight = keras_data.array_inputs(adapter)
    assert x.dtype == keras.config.floatx()
    assert y.dtype == Y.dtype
    np.testing.assert_allclose(weight, np.where(Y == 1, 2.0, 1.0))
    assert keras_data.are_dense((x, y, weight))
    assert not keras_data.are_dense((x, None))


def test_the_order_of_rows_is_that_of_fit():
    """ArrayDataAdapter's shuffle: without it equal seeds give another order than Keras's."""
    for shuffle in (True, "batch", False):
        keras.utils.set_random_seed(4)
        adapter = keras_data.adapt(np.arange(20), batch_size=4, shuffle=shuffle)
        expected = np.concatenate([np.ravel(tf.nest.flatten(batch)[0]) for batch in adapter.get_tf_dataset()])
        keras.utils.set_random_seed(4)
        rows = np.concatenate([np.ravel(b) for b in keras_data.array_order_dataset(20, 4, shuffle)])
        np.testing.assert_array_equal(rows, expected)
        assert sorted(rows) == list(range(20))


def test_the_last_rows_are_split_off():
    """array_slicing.train_validation_split."""
    (x, y, _), (xv, yv, _) = keras_data.split_validation((X, Y, None), 0.25)
    assert len(x) == len(y) == 15
    np.testing.assert_array_equal(xv, X[15:])
    np.testing.assert_array_equal(yv, Y[15:])


def test_a_missing_part_of_a_batch_is_none_again():
    """The adapters of Keras carry a None through tf.data as an empty optional."""

    def batches():
        while True:
            yield X[:4], None, np.ones(4, "float32")

    adapter = keras_data.adapt(batches())
    x, y, weight = keras_data.without_optionals(next(iter(adapter.get_tf_dataset())))
    assert y is None
    assert tf.is_tensor(x)
    assert tf.is_tensor(weight)


def test_whether_a_dataset_gives_the_same_again():
    """tf.raw_ops.DatasetToGraphV2 and Dataset._variant_tensor."""
    python = tf.data.Dataset.from_generator(
        generator, output_signature=(tf.TensorSpec([4, FEATURES]), tf.TensorSpec([4]))
    )
    assert keras_data.is_repeatable(dataset())
    assert not keras_data.is_repeatable(python)
    assert not keras_data.is_repeatable(dataset().map(lambda x, y: (x + tf.random.normal([FEATURES]), y)))
