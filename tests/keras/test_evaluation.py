"""How Keras validates within `fit`."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

from overlap_train._keras import training as keras_training
from tests.networks import CLASSES, FEATURES, arrays, crossentropy, sequential

X, Y = arrays(20)


def test_the_test_function_is_keras_s_and_compile_makes_another():
    """make_test_function, test_function."""
    model = sequential()
    function = keras_training.test_function(model)
    model.evaluate(X, Y, verbose=0)
    assert keras_training.test_function(model) is function is model.test_function
    model.compile("sgd", "mse")
    assert keras_training.test_function(model) is not function


def test_a_test_function_of_the_users_own_is_told_from_keras_s():
    """make_test_function, test_function: what they run need not be `test_step`."""

    class Own(keras.Sequential):
        def make_test_function(self, force=False):
            self.test_function = lambda iterator: {}

    model = sequential()
    assert not keras_training.has_own_test_function(model)
    model.evaluate(X, Y, verbose=0)
    assert not keras_training.has_own_test_function(model)
    model.test_function = lambda iterator: {}
    assert keras_training.has_own_test_function(model)
    assert keras_training.has_own_test_function(Own())


def evaluations(model, data, callbacks=(), **options):
    listed = keras.callbacks.CallbackList(callbacks, model=model)
    evaluate = keras_training.FitEvaluation(model, lambda: data, **options)
    for _ in range(2):
        logs, _ = evaluate(listed)
        yield logs


def test_a_validation_by_the_models_own_evaluate_is_that_of_fit():
    """TFEpochIterator, _eval_epoch_iterator, _use_cached_eval_dataset, of which one is kept."""

    def shuffled():
        return tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(20, seed=1).batch(4)

    class Own(keras.Sequential):
        def evaluate(self, *arguments, **options):
            return {**super().evaluate(*arguments, **options), "own": float(len(told))}

    def build():
        keras.utils.set_random_seed(1)
        model = Own([keras.Input((FEATURES,)), keras.layers.Dense(CLASSES)])
        model.compile(keras.optimizers.SGD(0.0), crossentropy(), metrics=["accuracy"])
        return model

    told = [1, 2]
    expected, actual = build(), build()
    fit = expected.fit(X, Y, epochs=2, verbose=0, validation_data=shuffled(), validation_steps=2)
    logs = list(evaluations(actual, (shuffled(), None, None), batch_size=None, steps=2))
    for epoch, ours in enumerate(logs):
        theirs = {name: fit.history[f"val_{name}"][epoch] for name in ours}
        assert ours == pytest.approx(theirs, rel=1e-5)
        assert ours["own"] == 2.0
    assert logs[0]["loss"] != logs[1]["loss"], "the second one began anew"


def test_a_validation_by_the_models_own_evaluate_tells_the_callbacks_of_the_fit():
    heard = []

    class Listening(keras.callbacks.Callback):
        def on_test_batch_end(self, batch, logs=None):
            heard.append(batch)

    model = sequential()
    list(evaluations(model, (X, Y, None), [Listening()], batch_size=8, steps=None))
    assert heard == [0, 1, 2] * 2
