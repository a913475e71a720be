"""Training on data that cannot be rewound runs ahead where no callback can change it."""

import itertools
import types

import keras
import pytest

from overlap_train import Trainer, ValidationPolicy
from overlap_train._callbacks.hooks import hook_that_waits, may_change_training
from tests.networks import arrays, assert_alike
from tests.pools import sequential
from tests.whole_fits.comparing import AHEAD, VALIDATION, Rows, X, Y, assert_as_keras, halves

STEPS = {"steps_per_epoch": 4, "shuffle": False, "verbose": 0}


def generator():
    for start in itertools.cycle(range(0, len(X), 16)):
        yield X[start : start + 16], Y[start : start + 16]


def batches():
    return Rows(size=16)


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


def stops(restore=False):
    return keras.callbacks.EarlyStopping("val_loss", min_delta=10.0, patience=2, restore_best_weights=restore)


def saved_slower(model, *args, **kwargs):
    model.optimizer.learning_rate.assign(0.5 * model.optimizer.learning_rate)
    keras.Model.save_weights(model, *args, **kwargs)


@pytest.mark.parametrize("source", [generator, batches])
@pytest.mark.parametrize(
    ("make", "epochs"),
    [
        (None, 4),
        (lambda: keras.callbacks.EarlyStopping("val_loss", patience=9), 4),
        (Watches, 4),
        (stops, 8),
        (lambda: stops(restore=True), 8),
    ],
    ids=["none", "patient", "declared", "stops", "restores"],
)
@pytest.mark.by_default("patient-generator", "restores-generator")
def test_it_runs_ahead_with_the_numbers_of_keras(source, make, epochs):
    def run(trained):
        callbacks = [make()] if make else []
        given = {"validation_data": VALIDATION, "callbacks": callbacks, **STEPS}
        trained.fit(source(), epochs=epochs, **given)
        explained = isinstance(trained, Trainer) and trained.explain(source(), epochs=epochs, **given)
        assert not explained or explained.max_lag == 2
        kept = ("stopped_epoch", "batches", "seen")
        return [getattr(callback, name, None) for callback in callbacks for name in kept]

    trainer = assert_as_keras(run)
    assert (len(trainer.model.history.epoch) < epochs) == (epochs == 8) == (trainer.ended == "stopped")


def test_what_may_change_the_training_keeps_it_in_step_and_is_named():
    trainer = Trainer(sequential(), validation=AHEAD)
    given = {"validation_data": VALIDATION, "callbacks": [Halves()], **STEPS}
    (reason,) = trainer.explain(generator(), epochs=2, **given).reasons
    trainer.fit(generator(), epochs=2, **given)
    assert reason.identifier == "data-once"
    assert "Halves may change what Python makes the training data from" in reason.sentence
    assert "overlap_safe = True" in reason.remedy
    assert any(str(reason) in message for message in trainer.messages)


@pytest.mark.parametrize("callbacks", [[], [lambda: halves(1)]], ids=["alone", "rolled back"])
def test_a_validation_generator_is_drawn_once_for_each_epoch(callbacks):
    """Keras loses what it has fetched ahead of a generator, how much differs from run to run."""

    def validation():
        for seed in itertools.count():
            yield arrays(16, seed)

    histories = []
    for lag in (0, 2):
        trainer = Trainer(sequential(), validation=ValidationPolicy(max_lag=lag, overlap="always"))
        given = {"validation_steps": 2, "shuffle": False, "verbose": 0}
        given["callbacks"] = [make() for make in callbacks]
        explained = trainer.explain(X, Y, validation_data=validation(), **given)
        waits = any("validation data comes from a generator" in str(each) for each in explained.reasons)
        assert (waits, explained.max_lag) == ((True, 0) if callbacks and lag else (False, lag))
        histories.append(trainer.fit(X, Y, epochs=4, validation_data=validation(), **given).history)
    assert_alike(histories[1], histories[0])


def test_a_false_declaration_is_an_error_and_no_other_training():
    class Fibs(Halves):
        overlap_safe = True

    trainer = Trainer(sequential(), validation=AHEAD)
    with pytest.raises(RuntimeError, match="declares overlap_safe = True"):
        trainer.fit(generator(), epochs=6, validation_data=VALIDATION, callbacks=[Fibs()], **STEPS)


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


def test_what_a_method_does_that_a_stock_callback_calls_is_seen_in_time(tmp_path):
    def build():
        model = sequential(keras.optimizers.SGD(0.1))
        model.save_weights = types.MethodType(saved_slower, model)
        return model

    def run(trained):
        saves = keras.callbacks.ModelCheckpoint(tmp_path / "w.weights.h5", save_weights_only=True)
        trained.fit(generator(), epochs=4, validation_data=VALIDATION, callbacks=[saves], **STEPS)

    assert_as_keras(run, build=build)
