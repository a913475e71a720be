"""Batches whose memory their owner fills anew."""

from __future__ import annotations

import keras
import numpy as np

from overlap_train import Trainer, ValidationPolicy
from tests.networks import arrays, assert_same_history, assert_same_weights, sequential


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
    def fit(train, model):
        plateau = keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=1, min_delta=10.0)
        given = dict(epochs=5, shuffle=False, verbose=0, validation_data=arrays(32, 1))
        train(Refills(), callbacks=[plateau], **given)
        return model

    expected = sequential(keras.optimizers.SGD(0.1))
    fit(expected.fit, expected)
    model = sequential(keras.optimizers.SGD(0.1))
    trainer = Trainer(model, validation=ValidationPolicy(max_lag=2, overlap="always"))
    fit(trainer.fit, model)
    assert any("back to" in message for message in trainer.messages)
    assert_same_history(model.history.history, expected.history.history)
    assert_same_weights(model, expected)
