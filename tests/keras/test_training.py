"""What Keras's `fit` goes by."""

from __future__ import annotations

import warnings

import keras
import pytest

from overlap_train._keras import models as keras_models
from overlap_train._keras import training as keras_training
from tests.networks import CLASSES, FEATURES, arrays, crossentropy, sequential

X, Y = arrays(20)


def warned(run):
    """Returns what a call gives and what it warns of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = run()
    return result, [str(warning.message) for warning in caught]


def test_the_cap_on_epochs_for_debugging():
    """keras.config.max_epochs, and the warning of `fit`."""
    assert keras_training.capped_epochs(7) == 7
    keras.config.set_max_epochs(3)
    try:
        assert warned(lambda: keras_training.capped_epochs(2)) == (2, [])
        assert warned(lambda: keras_training.capped_epochs(3)) == (3, [])
        capped, told = warned(lambda: keras_training.capped_epochs(7))
        history, keras_told = warned(lambda: sequential().fit(X, Y, epochs=7, verbose=0))
        assert capped == len(history.epoch) == 3
        assert told == keras_told
    finally:
        keras.config.set_max_epochs(None)


def test_the_cap_on_steps_for_debugging():
    """keras.config.max_steps_per_epoch, and the warning of `fit`; it caps an epoch of all batches too."""
    assert keras_training.capped_steps(7) == 7
    assert keras_training.capped_steps(None) is None
    keras.config.set_max_steps_per_epoch(3)
    try:
        assert warned(lambda: keras_training.capped_steps(2)) == (2, [])
        assert warned(lambda: keras_training.capped_steps(None))[0] == 3
        capped, told = warned(lambda: keras_training.capped_steps(7))
        model = sequential()
        _, keras_told = warned(lambda: model.fit(X, Y, batch_size=2, steps_per_epoch=7, verbose=0))
        assert capped == int(model.optimizer.iterations) == 3
        assert told == keras_told
    finally:
        keras.config.set_max_steps_per_epoch(None)


def test_the_train_function_is_keras_s_and_compile_takes_it_away():
    """make_train_function, train_function: they say how long a trace is good for."""
    model = sequential()
    assert keras_training.train_function(model) is None
    function = keras_training.begin_training(model)
    assert function is not None
    assert keras_training.begin_training(model) is function is keras_training.train_function(model)
    assert keras_models.is_stock_method(function)
    model.fit(X, Y, verbose=0)
    assert keras_training.train_function(model) is function
    model.make_train_function(force=True)
    assert keras_training.train_function(model) is not function
    model.compile("sgd", "mse")
    assert keras_training.train_function(model) is None


def test_a_train_function_of_the_users_own_is_told_from_keras_s():
    class Own(keras.Sequential):
        def make_train_function(self, force=False):
            self.train_function = lambda iterator: {}

    model = Own([keras.Input((FEATURES,)), keras.layers.Dense(CLASSES)])
    model.compile("sgd", crossentropy())
    assert not keras_models.is_stock_method(keras_training.begin_training(model))


def test_steps_per_execution_groups_steps_and_is_one_unless_it_is_set():
    assert keras_training.steps_per_execution(sequential()) == 1
    assert keras_training.steps_per_execution(sequential(steps_per_execution=3)) == 3


def test_a_model_is_called_for_training_where_its_call_knows_that():
    """Model._call_has_training_arg."""
    dropout = keras.layers.Dropout(0.5)
    model = keras.Sequential([keras.Input((FEATURES,)), dropout])
    assert (keras_training.forward(model, X) != X).numpy().any()

    class Plain(keras.Model):
        def call(self, x):
            return x

    assert (keras_training.forward(Plain(), X) == X).numpy().all()


def test_where_a_backup_lets_the_training_go_on(tmp_path):
    """Model._initial_epoch, which BackupAndRestore sets."""
    model = sequential()
    assert keras_training.initial_epoch(model, 2) == 2
    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup", delete_checkpoint=False)
    model.fit(X, Y, epochs=3, verbose=0, callbacks=[backup])
    again = sequential()
    backup.set_model(again)
    again(X)
    backup.on_train_begin()
    assert keras_training.initial_epoch(again, 0) == 3


@pytest.mark.parametrize(("profile_batch", "expected"), [(0, False), ((2, 3), True)])
def test_whether_tensorboard_profiles_batches(tmp_path, profile_batch, expected):
    """TensorBoard._should_trace."""
    callback = keras.callbacks.TensorBoard(tmp_path, profile_batch=profile_batch)
    assert keras_training.profiles(callback) is expected
