"""A setting that a training has changed goes on; one that the user changes is the user's."""

from __future__ import annotations

import functools

import keras
import pytest

from overlap_train import Trainer
from overlap_train._callbacks.settings import Settings
from overlap_train._checkpoint.fingerprints import differences
from overlap_train.errors import CheckpointCorruptError
from tests.callbacks.hooks import begin, run
from tests.networks import Outcome, arrays, assert_same_history, sequential

X, Y = arrays(48)


class Patient(keras.callbacks.EarlyStopping):
    """Waits longer after each epoch."""

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)
        self.patience += 1


def noted(*callbacks):
    return Settings(callbacks).records()


def changed(settings):
    return [{name: v for name, v in each.items() if isinstance(v, list)} for each in settings.records()]


def told(before, now):
    """Returns the settings that differ between two callbacks, or two lists of them."""
    now = Settings([now] if isinstance(now, keras.callbacks.Callback) else now)
    before = [before] if isinstance(before, keras.callbacks.Callback) else before
    kinds = [type(callback).__name__ for callback in before]
    return differences(*now.compared(noted(*before), now.match(kinds, noted(*before))))


def test_what_the_training_changes_is_found_and_what_keras_turns_round_is_not(model):
    early = Patient(patience=9, min_delta=0.5)
    settings = Settings([keras.callbacks.ProgbarLogger(), keras.callbacks.History(), early])
    assert changed(settings) == [{}, {}]
    begin(early, model)
    run(early, model, 0, 3)
    assert early.min_delta == -0.5
    assert changed(settings) == [{}, {"patience": [9, 12]}]
    early.min_delta, early.baseline = -0.25, 2.5
    assert changed(settings)[1] == {"patience": [9, 12], "min_delta": [0.5, 0.25], "baseline": [None, 2.5]}


def test_it_is_put_back_unless_it_was_given_otherwise():
    pairs = [{"patience": [9, 12], "baseline": [None, 2.5], "monitor": "val_loss"}]
    for given, patience in ((9, 12), (5, 5)):
        early = Patient(patience=given)
        settings = Settings([keras.callbacks.History(), early])
        settings.check(pairs, [None, 0])
        settings.put_back(pairs, [None, 0])
        assert (early.patience, early.baseline) == (patience, 2.5)


@pytest.mark.parametrize(
    "settings",
    [
        *({"patience": [3]}, {"patience": [3, "a"]}, {"patience": [3, True]}, {"monitor": ["loss", 1]}),
        *({"wait": [1, 2]}, {"__class__": [1, 2]}, {"patience": [3, 10**400]}, {"patience": 10**5000}),
        *({"restore_best_weights": [False, 1]}, {"patience": {}}, {"patience": [3, 4, 5]}),
    ],
)
def test_what_no_callback_has_had_is_corrupt(settings):
    with pytest.raises(CheckpointCorruptError, match="invalid"):
        Settings([Patient(patience=3)]).check([settings], [0])


def falling(epoch):
    return 0.1 / (1 + epoch)


def level(epoch):
    return 0.1


class OwnStopping(keras.callbacks.EarlyStopping):
    """Takes a setting of Keras's from its user, and adds one."""

    def __init__(self, monitor, colour="red"):
        super().__init__(monitor=monitor)
        self.colour = colour


def saving(**settings):
    return keras.callbacks.ModelCheckpoint(**{"filepath": "best.keras", **settings})


def logger(place, separator=","):
    return keras.callbacks.CSVLogger(f"{place}.csv", separator=separator)


schedule = keras.callbacks.LearningRateScheduler


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (saving(), saving(monitor="loss"), ["ModelCheckpoint.monitor is loss (was val_loss)"]),
        (saving(), saving(save_freq=3), ["ModelCheckpoint.save_freq is 3 (was epoch)"]),
        (saving(), saving(filepath="other.keras"), []),
        (OwnStopping("loss"), OwnStopping("mae", "blue"), ["OwnStopping.monitor is mae (was loss)"]),
        (
            schedule(falling),
            schedule(level),
            ["LearningRateScheduler.schedule is function level (was function falling)"],
        ),
        (schedule(level), schedule(level), []),
        (logger("a"), logger("b"), []),
        (logger("a"), logger("a", ";"), ["CSVLogger.sep is ; (was ,)"]),
        (
            [saving(), saving()],
            [saving(), saving(mode="max")],
            ["ModelCheckpoint (2).mode is max (was auto)"],
        ),
        ([saving()], [OwnStopping("loss")], []),
    ],
)
def test_what_a_callback_is_given_otherwise_is_told_but_for_where_it_writes(before, now, expected):
    assert told(before, now) == expected


def test_a_threshold_that_keras_has_turned_round_is_the_same(model):
    first, second = (keras.callbacks.EarlyStopping("loss", patience=3, min_delta=0.1) for _ in range(2))
    begin(first, model)
    run(first, model, 0, 1)
    assert told(first, second) == []


def test_callbacks_are_known_by_their_class_in_their_order():
    early, plateau = keras.callbacks.EarlyStopping(), keras.callbacks.ReduceLROnPlateau()
    history = keras.callbacks.History()
    for now, then, expected in [
        ([early, plateau], [early, plateau], [0, 1]),
        ([plateau, early], [early, plateau], [1, 0]),
        ([early, plateau, history], [plateau], [None, 0, None]),
        ([early, early], [early], [0, None]),
        ([], [early], []),
    ]:
        kinds = [type(callback).__name__ for callback in then]
        assert Settings(now).match(kinds, noted(*then)) == expected


def test_of_two_callbacks_of_a_class_the_one_that_stays_is_known_by_its_settings():
    loss, accuracy, other = (keras.callbacks.EarlyStopping(name) for name in ("loss", "accuracy", "mae"))
    for now, expected in [
        *(([accuracy], [1]), ([accuracy, loss], [1, 0])),
        *(([other, loss], [1, 0]), ([other], [0])),
    ]:
        assert Settings(now).match(["EarlyStopping"] * 2, noted(loss, accuracy)) == expected


@pytest.mark.nightly
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
