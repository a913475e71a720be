"""Evaluation functions together with the rest of a fit: rollback, resume, backlog, and their arguments."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from overlap_train import EvaluationFunction, Trainer, ValidationPolicy, ValidationSet
from tests.networks import (
    CLASSES,
    FEATURES,
    crossentropy,
)
from tests.validation.calling import (
    X,
    Y,
    fit,
    kl,
    mean_output,
    simple,
)


def test_a_rollback_calls_it_again_for_the_epochs_that_are_trained_again():
    calls = []

    def note(model):
        calls.append(int(model.optimizer.iterations))
        return 1.0

    plateau = keras.callbacks.ReduceLROnPlateau("val_note", mode="min", patience=1, factor=0.5)
    trainer = fit(simple(), {"note": note}, epochs=4, max_lag=1, callbacks=[plateau])
    assert sorted(set(calls)) == [4, 8, 12, 16]
    assert len(trainer.model.history.history["val_note"]) == 4
    assert any("back to the end of epoch" in message for message in trainer.messages)


@pytest.mark.nightly
def test_weights_that_a_test_hook_sets_are_those_that_are_evaluated():
    def swap():
        return keras.callbacks.SwapEMAWeights(swap_on_epoch=True)

    def build():
        keras.utils.set_random_seed(5)
        model = keras.Sequential([keras.Input((FEATURES,)), kl.Dense(CLASSES)])
        model.compile(keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5), crossentropy())
        return model

    found = []

    class Calls(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            found.append(mean_output(self.model))

    build().fit(X, Y, batch_size=16, epochs=3, verbose=0, validation_data=(X, Y), callbacks=[Calls(), swap()])
    trainer = fit(build(), {"mean": mean_output}, data=(X, Y), callbacks=[swap()])
    np.testing.assert_allclose(trainer.model.history.history["val_mean"], found, rtol=1e-5)


def test_a_resumed_training_has_the_values_of_an_unbroken_one(tmp_path):
    policy = ValidationPolicy(functions={"mean": mean_output})
    whole = Trainer(simple(), validation=policy).fit(X, Y, epochs=4, verbose=0, resume=tmp_path / "a")
    Trainer(simple(), validation=policy).fit(X, Y, epochs=2, verbose=0, resume=tmp_path / "b")
    resumed = Trainer(simple(), validation=policy).fit(X, Y, epochs=4, verbose=0, resume=tmp_path / "b")
    np.testing.assert_allclose(resumed.history["val_mean"], whole.history["val_mean"], rtol=1e-6)


def test_a_validation_set_object_may_stand_beside_a_function():
    data = {"a": ValidationSet(data=(X, Y)), "f": EvaluationFunction(mean_output)}
    trainer = fit(simple(), None, data=data, epochs=1)
    assert {"val_a_loss", "val_f"} <= set(trainer.model.history.history)
