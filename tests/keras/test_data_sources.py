"""Batches that their owner fills anew are copied once."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import Trainer, ValidationPolicy
from overlap_train._keras import data as keras_data
from overlap_train._keras.data_sources import BatchMaker
from tests.networks import arrays, assert_same_history, assert_same_weights, sequential

OFFSETS = [0, 4, 16, 32, 48]


def at_offset(shape, offset, dtype="float32"):
    """Returns an array at an address of a given offset behind a multiple of 64 bytes."""
    size_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(size_bytes + 128, np.uint8)
    begin = -raw.ctypes.data % 64 + offset
    return raw[begin : begin + size_bytes].view(dtype).reshape(shape)


def address(array):
    return array.ctypes.data


@pytest.mark.parametrize("offset", [4, 8, 16, 48])
def test_tensorflow_copies_at_other_addresses(offset):
    """What is not copied here, on every build of TensorFlow that is tested."""
    buffer = at_offset((8, 4), offset)
    dataset = tf.data.Dataset.from_generator(
        lambda: iter([buffer, buffer]), output_signature=tf.TensorSpec((8, 4))
    )
    batch = next(iter(dataset))
    buffer[:] = 1.0
    assert not np.any(batch.numpy())


@pytest.mark.parametrize("offset", OFFSETS)
def test_only_what_would_be_borrowed_is_copied(offset):
    array = at_offset((3, 2), offset)
    maker = BatchMaker(lambda: iter([(array, {"y": array})]))
    assert next(maker.iterate())[0] is array
    maker.copies = True
    x, others = next(maker.iterate())
    assert (x is array) == (others["y"] is array) == bool(offset % 32)
    assert x is array or address(x) % 64 == 0
    np.testing.assert_array_equal(x, array)


@pytest.mark.parametrize("kind", ["float16", "int64", "bool", "complex64", ">f4", "U3", "datetime64[s]"])
@pytest.mark.parametrize("shape", [(), (0, 3), (4,), (2, 3, 4)])
def test_arrays_of_any_kind_stay_what_they_are(kind, shape):
    array = np.zeros(shape, kind)
    maker = BatchMaker(lambda: iter([array, array[..., ::-1] if shape else array, None, 3.0, np.float32(2)]))
    maker.copies = True
    batches = list(maker.iterate())
    for copy in batches[:2]:
        assert (copy.dtype, copy.shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(copy, array)
    assert batches[2] is None
    assert batches[3:] == [3.0, 2.0]


def test_what_is_not_dense_is_not_copied_here():
    sparse = tf.sparse.from_dense(np.eye(2, dtype="float32"))
    pipeline = keras_data.recognize((pair for pair in [(sparse, np.zeros(2))] * 3), steps=3)
    assert not pipeline.own_batches()
    assert not keras_data.recognize(tf.data.Dataset.range(3)).own_batches()


class Refills(keras.utils.PyDataset):
    """Gives the same array again and again, filled anew."""

    def __init__(self, offset):
        super().__init__()
        self.x, self.y = arrays(64)
        self.buffer = at_offset((16, self.x.shape[1]), offset)

    def __len__(self):
        return 4

    def __getitem__(self, index):
        rows = slice(16 * index, 16 * index + 16)
        self.buffer[:] = self.x[rows]
        return self.buffer, self.y[rows]


@pytest.mark.nightly
@pytest.mark.parametrize("offset", [16, 48])
@pytest.mark.by_default("16")
def test_a_dataset_that_refills_its_array_gives_the_numbers_of_keras(offset):
    def fit(train, model):
        plateau = keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=1, min_delta=10.0)
        train(
            Refills(offset),
            epochs=5,
            shuffle=False,
            verbose=0,
            validation_data=arrays(32, 1),
            callbacks=[plateau],
        )
        return model

    expected = sequential(keras.optimizers.SGD(0.1))
    fit(expected.fit, expected)
    model = sequential(keras.optimizers.SGD(0.1))
    trainer = Trainer(model, validation=ValidationPolicy(max_lag=2, overlap="always"))
    fit(trainer.fit, model)
    assert any("back to" in message for message in trainer.messages)
    assert_same_history(model.history.history, expected.history.history)
    assert_same_weights(model, expected)
