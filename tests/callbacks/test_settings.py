"""A setting that a training has changed goes on; one that the user changes is the user's."""

from __future__ import annotations

import functools

import keras
import pytest

from overlap_train import Trainer
from overlap_train._callbacks.settings import Settings
from overlap_train.errors import CheckpointCorruptError
from tests.callbacks.hooks import begin, run
from tests.networks import Outcome, arrays, assert_same_history, sequential

X, Y = arrays(48)


class Patient(keras.callbacks.EarlyStopping):
    """Waits longer after each epoch."""

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)
        self.patience += 1


def test_what_the_training_changes_is_found_and_what_keras_turns_round_is_not(model):
    early = Patient(patience=9, min_delta=0.5)
    settings = Settings([keras.callbacks.ProgbarLogger(), keras.callbacks.History(), early])
    assert settings.changed() == {}
    begin(early, model)
    run(early, model, 0, 3)
    assert early.min_delta == -0.5
    assert settings.changed() == {"1": {"patience": [9, 12]}}
    early.min_delta, early.baseline = -0.25, 2.5
    assert settings.changed()["1"] == {"patience": [9, 12], "min_delta": [0.5, 0.25], "baseline": [None, 2.5]}


def test_it_is_put_back_unless_it_was_given_otherwise():
    changed = {"0": {"patience": [9, 12], "baseline": [None, 2.5]}}
    for given, patience in ((9, 12), (5, 5)):
        early = Patient(patience=given)
        settings = Settings([early])
        settings.check(changed)
        settings.put_back(changed)
        assert (early.patience, early.baseline) == (patience, 2.5)


@pytest.mark.parametrize(
    "changed",
    [
        *({"1": {}}, {"x": {}}, {"0": []}, {"0": {"patience": 3}}, {"0": {"patience": [3]}}),
        *({"0": {"patience": [3, "a"]}}, {"0": {"patience": [3, True]}}, {"0": {"monitor": ["loss", 1]}}),
        *({"0": {"wait": [1, 2]}}, {"0": {"__class__": [1, 2]}}, {"0": {"patience": [3, 10**400]}}),
        {"0": {"restore_best_weights": [False, 1]}},
    ],
    ids=str,
)
def test_what_no_training_has_changed_is_corrupt(changed):
    with pytest.raises(CheckpointCorruptError, match="invalid"):
        Settings([Patient(patience=3)]).check(changed)


def test_a_resumed_fit_stops_where_keras_stops(tmp_path):
    class Halves(Patient):
        def on_epoch_end(self, epoch, logs=None):
            super().on_epoch_end(epoch, logs)
            self.patience -= 1 if epoch > 2 else 0

    def stopped(train, epochs):
        stops = Halves("loss", patience=2, min_delta=10.0)
        train(X, Y, epochs=epochs, batch_size=16, verbose=0, callbacks=[stops])
        return stops.patience

    model = sequential()
    patience = stopped(model.fit, 12)
    expected = Outcome.of(model)
    assert len(expected.epochs) < 12
    for epochs in (2, 4, 12):
        model = sequential()
        trainer = Trainer(model)
        found = stopped(functools.partial(trainer.fit, resume=tmp_path), epochs)
    assert found == patience
    assert Outcome.of(model).epochs == expected.epochs
    assert_same_history(Outcome.of(model).history, expected.history)
