"""What is given to `fit`, as Keras takes it; each test names what breaks when Keras moves it."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train._keras import data as keras_data
from tests.networks import arrays

X, Y = arrays(20)


def dataset():
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(4)


class Rows(keras.utils.PyDataset):
    length = 5

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return X[index * 4 : index * 4 + 4], Y[index * 4 : index * 4 + 4]


def test_a_dataset_that_grows_is_counted_anew():
    """DataAdapter.num_batches asks the user's data each time, as Keras does in each epoch."""
    rows = Rows()
    pipeline = keras_data.recognize(rows)
    assert pipeline.num_batches == 5
    rows.length = 3
    assert pipeline.num_batches == 3


def test_arrays_come_as_keras_batches_them():
    """ArrayDataAdapter._inputs, _num_samples and array_slicing.convert_to_sliceable."""
    weights = {0: 1.0, 1: 2.0, 2: 1.0, 3: 1.0}
    result = keras_data.recognize(X.astype("float64"), Y, batch_size=4, shuffle="batch", class_weight=weights)
    x, y, weight = result.inputs
    assert x.dtype == keras.config.floatx()
    assert y.dtype == Y.dtype
    np.testing.assert_allclose(weight, np.where(Y == 1, 2.0, 1.0))
    assert (result.num_samples, result.batch_size, result.shuffle, result.dense) == (20, 4, "batch", True)
    assert not keras_data.recognize({"a": X, "b": None}, Y).dense
    assert not keras_data.recognize(tf.RaggedTensor.from_row_lengths(X[0], [len(X[0])])).dense
    assert keras_data.recognize(X, Y, steps=5).batch_size == 4


@pytest.mark.parametrize("role", ["training", "validation"])
def test_data_that_is_not_there_is_refused_but_a_dataset_to_validate_on_may_be_empty(role):
    with pytest.raises(ValueError, match=rf"there is no {role} data: x is None; pass arrays"):
        keras_data.recognize(None, role=role)
    with pytest.raises(ValueError, match=rf"the {role} data is empty: its arrays have 0 rows; pass at least"):
        keras_data.recognize(X[:0], role=role)
    if role == "validation":
        assert keras_data.recognize(dataset().take(0), role=role).num_batches == 0
    else:
        with pytest.raises(ValueError, match="the training data is empty: its dataset has no batch; pass at"):
            keras_data.recognize(dataset().take(0), role=role)
