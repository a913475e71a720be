"""Which callbacks let the training group steps and run ahead."""

from __future__ import annotations

import keras
import pytest

from overlap_train._callbacks.hooks import (
    asks_schedule,
    hook_that_waits,
    listens,
    looks_at_model,
    may_set_before_tests,
    overrides,
    wants_test_batches,
    wants_train_batches,
)

callbacks = keras.callbacks
anything = keras.backend.set_epsilon


def waits(callback, *, watched=False, late=True):
    return hook_that_waits(callback, watched=watched, late=late)


QUIET = {
    "EarlyStopping": lambda tmp: callbacks.EarlyStopping(),
    "ReduceLROnPlateau": lambda tmp: callbacks.ReduceLROnPlateau(),
    "LearningRateScheduler": lambda tmp: callbacks.LearningRateScheduler(lambda epoch: 0.1),
    "ModelCheckpoint": lambda tmp: callbacks.ModelCheckpoint(tmp / "m.keras"),
    "CSVLogger": lambda tmp: callbacks.CSVLogger(tmp / "log.csv"),
    "TensorBoard": lambda tmp: callbacks.TensorBoard(tmp / "tb"),
    "TerminateOnNaN": lambda tmp: callbacks.TerminateOnNaN(),
    "History": lambda tmp: callbacks.History(),
    "LambdaCallback": lambda tmp: callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: None),
}


@pytest.mark.parametrize("build", QUIET.values(), ids=QUIET)
def test_keras_callbacks_that_work_at_the_end_of_epochs_allow_the_overlap(build, tmp_path):
    callback = build(tmp_path)
    assert not wants_train_batches(callback)
    assert not wants_test_batches(callback)
    assert waits(callback) is None
    assert waits(callback, watched=True) is None
    assert waits(callback, late=False) is None


@pytest.mark.parametrize("hook", ["on_train_batch_begin", "on_train_batch_end", "on_batch_end"])
def test_an_override_of_a_batch_hook_is_heard_in_class_and_instance(hook):
    kind = type("Mine", (callbacks.Callback,), {hook: lambda self, batch, logs=None: self.model.stop()})
    assert wants_train_batches(kind())
    assert waits(kind()) == hook
    instance = callbacks.Callback()
    setattr(instance, hook, lambda batch, logs=None: anything(batch))
    assert overrides(instance, hook)
    assert wants_train_batches(instance)


def test_saving_in_the_middle_of_an_epoch_is_heard(tmp_path):
    assert wants_train_batches(callbacks.ModelCheckpoint(tmp_path / "m.keras", save_freq=10))
    assert wants_train_batches(callbacks.TensorBoard(tmp_path, update_freq=5))
    assert wants_test_batches(callbacks.TensorBoard(tmp_path, update_freq="batch"))
    assert wants_train_batches(callbacks.TensorBoard(tmp_path, profile_batch=3))


def test_a_subclass_of_a_known_callback_is_not_known():
    class Guard(callbacks.TerminateOnNaN):
        def on_batch_end(self, batch, logs=None):
            super().on_batch_end(batch, logs)

    class Saver(callbacks.ModelCheckpoint):
        def on_train_batch_end(self, batch, logs=None):
            self.model.save("m.keras")

    class Scheduler(callbacks.LearningRateScheduler):
        def on_epoch_begin(self, epoch, logs=None):
            self.model.optimizer.learning_rate = 0.1

    assert wants_train_batches(Guard())
    assert wants_train_batches(Saver("m.keras"))
    assert not asks_schedule(Scheduler(lambda epoch: 0.1))


def test_a_beginning_of_an_epoch_waits_only_where_it_cannot_be_called_late_or_is_watched():
    class Begin(callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.model.optimizer.learning_rate = 0.1

    assert waits(Begin()) is None
    assert waits(Begin(), watched=True) == waits(Begin(), late=False) == "on_epoch_begin"
    assert not wants_train_batches(Begin())


def test_an_empty_hook_is_not_called():
    class Empty(callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            """Called at the beginning of a batch."""

        def on_test_batch_end(self, batch, logs=None):
            return None

    assert not wants_train_batches(Empty())
    assert not wants_test_batches(Empty())
    assert waits(Empty(), late=False) is None


def test_who_declares_that_it_only_watches_never_waits():
    class Rates(callbacks.Callback):
        overlap_safe = True

        def on_train_batch_end(self, batch, logs=None):
            self.rate = float(self.model.optimizer.learning_rate)

    assert wants_train_batches(Rates())
    assert waits(Rates(), watched=True, late=False) is None


def test_listening_is_by_any_of_the_hooks():
    class Test(callbacks.Callback):
        def on_test_end(self, logs=None):
            pass

    assert listens([callbacks.Callback(), Test()], "on_test_begin", "on_test_end")
    assert not listens([callbacks.Callback()], "on_test_begin", "on_test_end")
    assert waits(Test(), late=False) is None


def test_only_who_is_called_at_an_epochs_end_looks_at_the_model(tmp_path):
    looking = {name for name, build in QUIET.items() if looks_at_model(build(tmp_path))}
    assert looking == set(QUIET) - {"History", "TerminateOnNaN"}
    history = callbacks.History()
    history.on_epoch_end = lambda epoch, logs: None
    assert looks_at_model(history)
    assert looks_at_model(callbacks.LambdaCallback(on_test_end=lambda logs: None))


class Logs(callbacks.Callback):
    def on_test_begin(self, logs=None):
        self.begun = True


class Swaps(callbacks.Callback):
    def on_test_begin(self, logs=None):
        self.model.set_weights([])


class Declared(Swaps):
    overlap_safe = True


class Rates(callbacks.TensorBoard):
    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)


@pytest.mark.parametrize(
    ("build", "sets"),
    [
        (callbacks.History, False),
        (Logs, False),
        (Swaps, True),
        (Declared, False),
        (lambda: Rates("tb"), False),
    ],
)
def test_who_may_set_the_model_as_a_validation_begins(build, sets):
    assert may_set_before_tests(build()) is sets
