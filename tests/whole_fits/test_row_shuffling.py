"""Rows come in the order of a Keras that shuffles without drawing: by one number, or by that of the epoch."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.trainers import data_adapters

from overlap_train import Trainer, ValidationPolicy
from overlap_train._data import array_feed
from overlap_train._keras import data as keras_data
from tests.networks import arrays
from tests.pools import sequential
from tests.whole_fits.comparing import assert_as_keras

X, Y = arrays(70)


@pytest.fixture(params=["fixed", "counted"])
def shuffling(request, monkeypatch):
    """A Keras whose adapters count epochs, and whose pipelines hold that number or look it up."""

    class Counting(data_adapters.ArrayDataAdapter):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self._epoch = 0
            self._number = tf.Variable(0)

        def on_epoch_end(self):
            self._epoch += 1
            self._number.assign(self._epoch)

        def get_tf_dataset(self):
            number = 0 if request.param == "fixed" else self._number

            def shuffled(rows):
                seed = tf.stack([tf.convert_to_tensor(number), 0])
                return tf.random.experimental.stateless_shuffle(rows, seed=seed)

            with monkeypatch.context() as patch:
                patch.setattr(tf.random, "shuffle", shuffled)
                patch.setattr(self, "_tf_shuffle", shuffled, raising=False)
                return super().get_tf_dataset()

    for module in (data_adapters, keras_data):
        monkeypatch.setattr(module, "ArrayDataAdapter", Counting)
    for cached in (keras_data.row_shuffling, array_feed._cached_order):
        cached.cache_clear()
    yield request.param
    for cached in (keras_data.row_shuffling, array_feed._cached_order):
        cached.cache_clear()


@pytest.mark.by_default("counted-5-batch", "fixed-5-batch")
@pytest.mark.parametrize("shuffle", [True, "batch"])
@pytest.mark.parametrize("seed", [None, 5])
def test_rows_come_in_the_order_of_keras(shuffling, shuffle, seed):
    assert keras_data.row_shuffling() == shuffling

    def build():
        model = sequential()
        tf.random.set_seed(seed)
        return model

    def run(trained):
        plateau = keras.callbacks.ReduceLROnPlateau("val_loss", patience=0, factor=0.5, min_delta=10.0)
        given = {"validation_data": arrays(33, 1), "callbacks": [plateau], "verbose": 0}
        trained.fit(X, Y, epochs=4, batch_size=16, shuffle=shuffle, **given)

    assert_as_keras(run, ValidationPolicy(overlap="always"), build=build)


@pytest.mark.nightly
def test_another_process_goes_on_in_the_order_of_keras(shuffling, tmp_path):
    if shuffling == "counted":
        pytest.skip("a pipeline of Keras's that looks its number up cannot be resumed, which is said")

    def trained(*epochs):
        for last in epochs:
            model = sequential()
            tf.random.set_seed(None)
            Trainer(model).fit(X, Y, epochs=last, batch_size=16, resume=tmp_path / str(epochs), verbose=0)
        return model

    np.testing.assert_array_equal(
        np.concatenate([np.ravel(w) for w in trained(4).get_weights()]),
        np.concatenate([np.ravel(w) for w in trained(2, 4).get_weights()]),
    )
