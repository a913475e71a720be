"""Evaluation functions in a fit: rollback, resume, other data, random runs against callbacks of Keras's."""

from __future__ import annotations

import keras
import numpy as np

from overlap_train import Trainer, ValidationPolicy
from tests.networks import arrays
from tests.validation.calling import X, Y, fit, mean_output, simple

kc = keras.callbacks
HELD = arrays(40, 5)


def test_a_rollback_calls_it_again_for_the_epochs_that_are_trained_again():
    calls = []

    def count(model):
        calls.append(int(model.optimizer.iterations))
        return 1.0

    plateau = kc.ReduceLROnPlateau("val_count", mode="min", patience=1, factor=0.5)
    trainer = fit(simple(), {"count": count}, epochs=4, max_lag=1, callbacks=[plateau])
    assert sorted(set(calls)) == [4, 8, 12, 16]
    assert len(trainer.model.history.history["val_count"]) == 4
    assert any("back to the end of epoch" in message for message in trainer.messages)


def test_a_resumed_training_has_the_values_of_an_unbroken_one(tmp_path):
    def values(epochs, name):
        trainer = Trainer(simple(), validation=ValidationPolicy(functions={"mean": mean_output}))
        return trainer.fit(X, Y, epochs=epochs, verbose=0, resume=tmp_path / name).history["val_mean"]

    whole, _ = values(4, "a"), values(2, "b")
    np.testing.assert_allclose(values(4, "b"), whole, rtol=1e-6)
