"""What `fit` goes by, and how it validates."""

from __future__ import annotations

import warnings

import keras
import pytest
import tensorflow as tf

from overlap_train._keras import training as keras_training
from overlap_train._keras.evaluation import FitEvaluation
from tests.networks import CLASSES, FEATURES, arrays, crossentropy, sequential

X, Y = arrays(20)


def warned(run):
    """Returns what a call gives and what it warns of."""
    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter("always")
        result = run()
    return result, [str(warning.message) for warning in records]


@pytest.mark.nightly
@pytest.mark.by_default("epochs")
@pytest.mark.parametrize("what", ["epochs", "steps"])
def test_the_caps_for_debugging_are_those_of_fit_with_its_warning(what):
    """keras.config.max_epochs, max_steps_per_epoch; the latter caps an epoch of all batches too."""
    capped = {"epochs": keras_training.capped_epochs, "steps": keras_training.capped_steps}[what]
    cap = {"epochs": keras.config.set_max_epochs, "steps": keras.config.set_max_steps_per_epoch}[what]
    options = {"epochs": {"epochs": 7}, "steps": {"batch_size": 2, "steps_per_epoch": 7}}[what]
    model = sequential()
    assert capped(7) == 7
    assert keras_training.capped_steps(None) is None
    cap(3)
    try:
        assert warned(lambda: capped(2)) == (2, [])
        count, messages = warned(lambda: capped(7))
        history, keras_messages = warned(lambda: model.fit(X, Y, **options, verbose=0))
        assert count == (len(history.epoch) if what == "epochs" else int(model.optimizer.iterations)) == 3
        assert messages == keras_messages
        if what == "steps":
            assert warned(lambda: capped(None))[0] == 3
        else:
            assert warned(lambda: capped(3)) == (3, [])
    finally:
        cap(None)


@pytest.mark.nightly
def test_a_validation_by_the_models_own_evaluate_is_that_of_fit_and_tells_its_callbacks():
    """TFEpochIterator, _eval_epoch_iterator, _use_cached_eval_dataset, of which one is kept."""
    batches = []

    class Listening(keras.callbacks.Callback):
        def on_test_batch_end(self, batch, logs=None):
            batches.append(batch)

    class Own(keras.Sequential):
        def evaluate(self, *arguments, **options):
            return {**super().evaluate(*arguments, **options), "own": 2.0}

    def shuffled():
        return tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(20, seed=1).batch(4)

    def build():
        keras.utils.set_random_seed(1)
        model = Own([keras.Input((FEATURES,)), keras.layers.Dense(CLASSES)])
        model.compile(keras.optimizers.SGD(0.0), crossentropy(), metrics=["accuracy"])
        return model

    expected, model = build(), build()
    fit = expected.fit(X, Y, epochs=2, verbose=0, validation_data=shuffled(), validation_steps=2)
    listed = keras.callbacks.CallbackList([Listening()], model=model)
    data = (shuffled(), None, None)
    evaluate = FitEvaluation(model, lambda: data, batch_size=None, steps=2)
    logs = [evaluate(listed)[0] for _ in range(2)]
    for epoch, ours in enumerate(logs):
        assert ours == pytest.approx({name: fit.history[f"val_{name}"][epoch] for name in ours}, rel=1e-5)
        assert ours["own"] == 2.0
    assert logs[0]["loss"] != logs[1]["loss"], "the second one began anew"
    assert batches == [0, 1] * 2
