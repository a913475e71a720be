"""Contract C8: a fit that is resumed has the result of the unbroken one, or is refused."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import Trainer
from tests.networks import FEATURES, arrays, assert_same_history, drawn_in_python
from tests.pools import sequential

VALIDATION = arrays(40, 1)


def fitted(epochs, resume=None):
    model = sequential()
    callbacks = [
        keras.callbacks.EarlyStopping("val_loss", patience=9, restore_best_weights=True),
        keras.callbacks.ReduceLROnPlateau("val_loss", patience=0, min_delta=0.1),
    ]
    Trainer(model).fit(
        *arrays(),
        validation_data=VALIDATION,
        batch_size=16,
        verbose=0,
        epochs=epochs,
        callbacks=callbacks,
        resume=resume,
    )
    return model


def test_a_resumed_fit_has_the_result_of_the_unbroken_one_and_is_not_trained_again(tmp_path):
    unbroken = fitted(6)
    fitted(3, resume=tmp_path)
    for _ in range(2):  # the second finds a finished fit
        resumed = fitted(6, resume=tmp_path)
        assert resumed.history.epoch == unbroken.history.epoch
        assert_same_history(resumed.history.history, unbroken.history.history)
        for a, b in zip(resumed.get_weights(), unbroken.get_weights(), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6)
        assert int(resumed.optimizer.iterations) == 6 * 13


def test_resuming_works_beside_backup_and_restore(tmp_path):
    def fit(epochs, directory):
        backup = keras.callbacks.BackupAndRestore(str(tmp_path / "backup"), delete_checkpoint=False)
        return Trainer(sequential()).fit(
            *arrays(),
            epochs=epochs,
            validation_data=VALIDATION,
            callbacks=[backup],
            resume=directory,
            verbose=0,
        )

    expected = Trainer(sequential()).fit(*arrays(), epochs=4, validation_data=VALIDATION, verbose=0)
    fit(2, tmp_path / "checkpoints")
    assert_same_history(fit(4, tmp_path / "checkpoints").history, expected.history)


def test_resume_refuses_data_that_cannot_be_found_again(tmp_path):
    rows = drawn_in_python(*arrays(32))
    with pytest.raises(ValueError, match="resume needs data whose position can be found again"):
        Trainer(sequential()).fit(rows.batch(16), resume=tmp_path, verbose=0)


def text_of_the_data():
    text = tf.Variable("a")

    def longer(x, y):
        text.assign(tf.strings.join([text.read_value(), "b"]))
        return x * tf.cast(tf.strings.length(text.read_value()), x.dtype), y

    return sequential(), tf.data.Dataset.from_tensor_slices(arrays(32)).batch(16).map(longer), "Variable"


class Captures(keras.layers.Layer):
    def build(self, shape):
        self.captured = [tf.Variable(["a"], name="captured")]

    def call(self, x):
        return x * tf.cast(tf.strings.length(self.captured[0]), x.dtype)


def text_of_the_model():
    model = keras.Sequential([keras.Input((FEATURES,)), Captures(), keras.layers.Dense(4)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model, tf.data.Dataset.from_tensor_slices(arrays(32)).batch(16), "captured"


@pytest.mark.parametrize("make", [text_of_the_data, text_of_the_model])
def test_resume_refuses_a_variable_of_text_before_anything_is_trained(make, tmp_path):
    model, data, name = make()
    before = model.get_weights()
    with pytest.raises(ValueError, match=f"resume cannot store the variable .*{name}.* of the type string"):
        Trainer(model).fit(data, resume=tmp_path, verbose=0)
    for one, other in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(one, other)
    Trainer(model).fit(data, verbose=0)
