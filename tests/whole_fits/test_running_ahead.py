"""Training on data that cannot be rewound runs ahead where no callback can change it."""

from __future__ import annotations

import functools
import itertools
import types

import keras
import numpy as np
import pytest

from overlap_train import Trainer, ValidationPolicy
from overlap_train._callbacks.hooks import hook_that_waits, may_change_training
from tests import networks
from tests.networks import VALIDATION_ROWS, arrays, assert_same_history, assert_same_weights
from tests.pools import sequential

X, Y = arrays()
VALIDATION = arrays(VALIDATION_ROWS, 1)


def generator():
    for start in itertools.cycle(range(0, len(X), 16)):
        yield X[start : start + 16], Y[start : start + 16]


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return len(X) // 16

    def __getitem__(self, index):
        return X[index * 16 : index * 16 + 16], Y[index * 16 : index * 16 + 16]


class Watches(keras.callbacks.Callback):
    """Counts batches and reads logs."""

    overlap_safe = True

    def __init__(self):
        super().__init__()
        self.batches, self.seen = 0, {}

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        self.batches += 1

    def on_epoch_end(self, epoch, logs=None):
        self.seen[epoch] = dict(logs)


class Halves(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.optimizer.learning_rate = self.model.optimizer.learning_rate / 2


class Fibs(Halves):
    overlap_safe = True


def fit(make, callbacks, lag=1, epochs=4, validation=VALIDATION, **more):
    model = sequential()
    trainer = Trainer(model, validation=ValidationPolicy(max_lag=lag, overlap="always"))
    arguments = dict(epochs=epochs, steps_per_epoch=4, shuffle=False, verbose=0, callbacks=callbacks, **more)
    explained = trainer.explain(make(), validation_data=validation, **arguments)
    trainer.fit(make(), validation_data=validation, **arguments)
    return trainer, explained


@functools.cache
def fitted_by_keras(source):
    """Fits without callbacks: none of those below changes the training. No pool takes the model back."""
    model = networks.sequential()
    arguments = {"epochs": 4, "steps_per_epoch": 4, "shuffle": False, "verbose": 0}
    model.fit(source(), validation_data=VALIDATION, **arguments)
    return model


@pytest.mark.parametrize("source", [generator, Batches])
@pytest.mark.parametrize(
    "callbacks",
    [list, lambda: [keras.callbacks.EarlyStopping("val_loss", patience=9)], lambda: [Watches()]],
    ids=["none", "early-stopping", "declared"],
)
@pytest.mark.by_default("early-stopping-generator")
def test_it_runs_ahead_with_the_numbers_of_keras(source, callbacks):
    trainer, explained = fit(source, callbacks())
    expected = fitted_by_keras(source)
    assert explained.overlaps
    assert_same_history(trainer.model.history.history, expected.history.history)
    assert_same_weights(trainer.model, expected)


@pytest.mark.parametrize("restore", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_early_stopping_ends_where_it_would_have_ended(restore):
    results = []
    for lag in (0, 2):
        stops = keras.callbacks.EarlyStopping(
            "val_loss", min_delta=10.0, patience=2, restore_best_weights=restore
        )
        trainer, explained = fit(generator, [stops], lag=lag, epochs=8)
        assert explained.max_lag == lag
        results.append((trainer.model, trainer.ended, stops.stopped_epoch))
    (expected, *how), (actual, *also) = results
    assert how == also
    assert len(actual.history.epoch) < 8
    assert_same_history(actual.history.history, expected.history.history)
    assert_same_weights(actual, expected)


def test_what_may_change_the_training_keeps_it_in_step_and_is_named():
    trainer, explained = fit(generator, [Halves()])
    assert not explained.overlaps
    (reason,) = explained.reasons
    assert reason.identifier == "data-once"
    assert "Halves may change what Python makes the training data from" in reason.sentence
    assert "overlap_safe = True" in reason.remedy
    assert any(str(reason) in message for message in trainer.messages)


def test_a_validation_generator_runs_ahead_likewise():
    def batches():
        for seed in itertools.count():
            yield arrays(16, seed)

    data = (X, Y)
    histories = []
    for lag in (0, 2):
        model = sequential()
        trainer = Trainer(model, validation=ValidationPolicy(max_lag=lag, overlap="always"))
        arguments = {"validation_data": batches(), "validation_steps": 2, "shuffle": False, "verbose": 0}
        explained = trainer.explain(*data, **arguments | {"validation_data": batches()})
        assert explained.max_lag == lag
        histories.append(trainer.fit(*data, epochs=4, **arguments).history)
    assert_same_history(histories[1], histories[0])


def test_a_false_declaration_is_an_error_and_no_other_training():
    with pytest.raises(RuntimeError, match="declares overlap_safe = True"):
        fit(generator, [Fibs()], epochs=6)


def test_a_declaration_lets_a_callback_watch_batches_while_the_training_runs_ahead():
    watches = Watches()
    model = sequential()
    trainer = Trainer(model, validation=ValidationPolicy(overlap="always"))
    trainer.fit(X, Y, batch_size=32, epochs=3, verbose=0, validation_data=VALIDATION, callbacks=[watches])
    assert trainer.explain(X, Y, validation_data=VALIDATION, callbacks=[watches]).overlaps
    assert watches.batches == 3 * -(-len(X) // 32)
    assert sorted(watches.seen) == [0, 1, 2]
    assert all(np.isfinite(logs["val_loss"]) for logs in watches.seen.values())


@pytest.mark.parametrize("value", [1, "yes", None, False])
def test_only_true_is_a_declaration(value):
    callback = Halves()
    callback.overlap_safe = value
    assert may_change_training(callback)


def test_a_subclass_of_a_stock_callback_may_change_the_training():
    class Mine(keras.callbacks.EarlyStopping):
        def on_epoch_end(self, epoch, logs=None):
            super().on_epoch_end(epoch, logs)
            self.model.optimizer.learning_rate = 0.1

    class Monitors(keras.callbacks.EarlyStopping):
        def get_monitor_value(self, logs):
            self.model.optimizer.learning_rate = 0.1
            return super().get_monitor_value(logs)

    assert may_change_training(Mine())
    assert may_change_training(Monitors())
    assert not may_change_training(keras.callbacks.Callback())
    assert not may_change_training(keras.callbacks.EarlyStopping())
    assert hook_that_waits(Watches(), watched=True, late=False) is None


def saved_slower(model, *args, **kwargs):
    model.optimizer.learning_rate.assign(0.5 * model.optimizer.learning_rate)
    keras.Model.save_weights(model, *args, **kwargs)


@pytest.mark.parametrize("on_model", [True, False])
def test_a_stock_callback_may_call_a_method_that_the_user_has_written(on_model, tmp_path):
    saver = keras.callbacks.ModelCheckpoint(tmp_path / "w.weights.h5", save_weights_only=True)
    kind = keras.Model if on_model else type("Saves", (keras.Model,), {"save_weights": saved_slower})
    model = kind()
    model.stop_training = False
    saver.set_model(model)
    assert may_change_training(saver) != on_model
    if on_model:
        model.save_weights = types.MethodType(saved_slower, model)
        assert may_change_training(saver)


@pytest.mark.nightly
def test_what_it_changes_is_seen_in_time(tmp_path):
    def fitted(train):
        model = sequential(keras.optimizers.SGD(0.1))
        model.save_weights = types.MethodType(saved_slower, model)
        saver = keras.callbacks.ModelCheckpoint(tmp_path / "w.weights.h5", save_weights_only=True)
        train(model)(
            generator(),
            shuffle=False,
            steps_per_epoch=4,
            epochs=4,
            verbose=0,
            validation_data=VALIDATION,
            callbacks=[saver],
        )
        return model

    policy = ValidationPolicy(max_lag=2, overlap="always")
    expected = fitted(lambda model: model.fit)
    model = fitted(lambda model: Trainer(model, validation=policy).fit)
    assert_same_history(model.history.history, expected.history.history)
    assert_same_weights(model, expected)
