"""Contracts C6 and C7, and what Keras lacks: named sets, validations inside epochs, evaluation functions."""

from __future__ import annotations

import threading

import keras
import pytest
import tensorflow as tf

from overlap_train import Trainer, ValidationPolicy, ValidationSet
from tests.networks import arrays
from tests.pools import sequential
from tests.whole_fits.comparing import goes_back

VALIDATION = arrays(40, 1)


class Gate:
    """Holds the validation of chosen epochs until it is opened, through a py_function in the data."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.entered = threading.Event()

    def dataset(self) -> tf.data.Dataset:
        def hold(x, y):
            self.entered.set()
            assert self.open.wait(60)
            return x, y

        data = tf.data.Dataset.from_tensor_slices(VALIDATION).batch(20)
        spec = data.element_spec

        def held(x, y):
            x2, y2 = tf.py_function(hold, (x, y), [spec[0].dtype, spec[1].dtype])
            return tf.ensure_shape(x2, spec[0].shape), tf.ensure_shape(y2, spec[1].shape)

        return data.map(held)


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_warn_leaves_the_epoch_without_its_validation():
    passes = []

    def batches():
        passes.append(1)
        yield VALIDATION[0][:20], VALIDATION[1][:20]
        if len(passes) == 1:
            raise OSError("the disk went away")
        yield VALIDATION[0][20:], VALIDATION[1][20:]

    spec = tf.TensorSpec([20, 12], tf.float32), tf.TensorSpec([20], tf.int64)
    data = tf.data.Dataset.from_generator(batches, output_signature=spec)
    trainer = Trainer(sequential(), validation=ValidationPolicy(on_error="warn"))
    with pytest.warns(RuntimeWarning, match="left out: validating epoch 1 failed"):
        history = trainer.fit(*arrays(), epochs=3, validation_data=data, verbose=0)
    assert len(history.history["val_loss"]) == 2
    assert [account.skipped for account in trainer.accounts] == [True, False, False]


def test_several_validation_sets_by_name():
    x, y = VALIDATION
    noisy = tf.data.Dataset.from_tensor_slices((x + 1.0, y)).batch(7)
    sets = {"clean": VALIDATION, "noisy": ValidationSet(data=noisy, freq=2, steps=3)}
    model = sequential()
    history = Trainer(model).fit(*arrays(), epochs=4, validation_data=sets, verbose=0).history
    assert len(history["val_clean_loss"]) == 4
    assert len(history["val_noisy_loss"]) == 2
    expected = model.evaluate(noisy.take(3), verbose=0, return_dict=True)
    assert history["val_noisy_loss"][-1] == pytest.approx(expected["loss"], rel=1e-5)
    assert history["val_clean_accuracy"][-1] == pytest.approx(model.evaluate(*VALIDATION, verbose=0)[1])


def test_validation_inside_epochs():
    trainer = Trainer(sequential(), validation=ValidationPolicy(every_steps=4))
    trainer.fit(*arrays(), batch_size=20, epochs=2, shuffle=False, validation_data=VALIDATION, verbose=0)
    made = [(validation.epoch, validation.step) for validation in trainer.step_validations]
    assert made == [(0, 4), (0, 8), (1, 12), (1, 16), (1, 20)]
    model = sequential()
    model.fit(*arrays(), batch_size=20, steps_per_epoch=8, shuffle=False, verbose=0)
    expected = model.evaluate(*VALIDATION, verbose=0, return_dict=True)
    assert trainer.step_validations[1].metrics["val_loss"] == pytest.approx(expected["loss"], rel=1e-5)


def test_a_rollback_calls_a_function_again_for_the_epochs_that_are_trained_again():
    calls = []

    def count(model):
        calls.append(int(model.optimizer.iterations))
        return 1.0

    policy = ValidationPolicy(functions={"count": count}, overlap="always", max_lag=1)
    trainer = Trainer(sequential(), validation=policy)
    plateau = keras.callbacks.ReduceLROnPlateau("val_count", mode="min", patience=1, factor=0.5)
    history = trainer.fit(*arrays(64), batch_size=16, epochs=4, callbacks=[plateau], verbose=0).history
    assert sorted(set(calls)) == [4, 8, 12, 16]
    assert len(history["val_count"]) == 4
    assert goes_back(trainer)


REFUSED_BY_FIT = [
    (dict(resume=3), TypeError, "resume must be a directory, a CheckpointPolicy or None; got int"),
    (dict(validation_data={}), ValueError, "validation_data is an empty dict"),
    (dict(validation_data={3: VALIDATION}), TypeError, "names of validation sets must be strings; got 3"),
    (dict(validation_data={"": VALIDATION}), ValueError, "must not be empty"),
    (dict(validation_data={"a": VALIDATION, "b": None}), TypeError, r"\['b'\] is None; leave this set"),
    (dict(validation_data={"a": ValidationSet(data=None)}), TypeError, r"validation_data\['a'\] is None"),
]


@pytest.mark.parametrize(("arguments", "error", "message"), REFUSED_BY_FIT)
def test_what_cannot_be_meant_is_refused_by_name(arguments, error, message):
    """The values of policies and sets are tried in tests/options/test_options.py and test_signatures.py."""
    with pytest.raises(error, match=message):
        Trainer(sequential()).fit(*arrays(), verbose=0, **arguments)
