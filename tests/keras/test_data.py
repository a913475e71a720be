"""What is given to `fit`, as Keras takes it; each test names what breaks when Keras moves it."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import Trainer, ValidationPolicy
from overlap_train._keras import data as keras_data
from tests.networks import arrays, assert_same_history, assert_same_weights, sequential
from tests.whole_fits.comparing import Rows

X, Y = arrays(20)


def dataset():
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(4)


def test_a_dataset_that_grows_is_counted_anew():
    """DataAdapter.num_batches asks the user's data each time, as Keras does in each epoch."""
    rows = Rows(X, Y, 4)
    pipeline = keras_data.recognize(rows)
    assert pipeline.num_batches == 5
    rows.x = X[:12]
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


class Refills(keras.utils.PyDataset):
    """Gives the same array again and again, filled anew, at an address at which TensorFlow borrows none."""

    def __init__(self):
        super().__init__()
        self.x, self.y = arrays(64)
        raw = np.zeros((17, self.x.shape[1]), "float32")
        self.buffer = raw.ravel()[(-raw.ctypes.data // 4 + 4) % 16 :][: 16 * raw.shape[1]].reshape(16, -1)

    def __len__(self):
        return 4

    def __getitem__(self, index):
        rows = slice(16 * index, 16 * index + 16)
        self.buffer[:] = self.x[rows]
        return self.buffer, self.y[rows]


def test_a_dataset_that_refills_its_array_gives_the_numbers_of_keras():
    def fit(train):
        plateau = keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=1, min_delta=10.0)
        arguments = {"epochs": 5, "shuffle": False, "verbose": 0, "validation_data": arrays(32, 1)}
        train(Refills(), callbacks=[plateau], **arguments)

    expected = sequential(keras.optimizers.SGD(0.1))
    fit(expected.fit)
    model = sequential(keras.optimizers.SGD(0.1))
    trainer = Trainer(model, validation=ValidationPolicy(max_lag=2, overlap="always"))
    fit(trainer.fit)
    assert any("back to" in message for message in trainer.messages)
    assert_same_history(model.history.history, expected.history.history)
    assert_same_weights(model, expected)
