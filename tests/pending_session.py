"""Not collected. Each test shows a bug of `session.py` or `trainer.py`; move it to the file named in it."""

from __future__ import annotations

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import Trainer
from tests.models import arrays, assert_same_history, assert_same_weights
from tests.test_bad_input import XV, YV, X, Y, linear


def test_a_stop_inside_an_epoch_begins_no_other_epoch():
    """To tests/test_bad_input.py (guard=True there). `FitSession.run` begins another epoch, of no step.

    `model.stop_training` is set inside epoch 0, whose validation is still pending; `_stopped` is set only at
    its delivery. So epoch 1 begins, makes no step, and its loss of 0.0 is delivered.
    """
    x = X.copy()
    x[40] = np.nan
    arguments = {"epochs": 3, "batch_size": 16, "shuffle": False, "validation_data": (XV, YV), "verbose": 0}
    models = [linear(), linear()]
    for run in (models[0].fit, Trainer(models[1]).fit):
        run(x, Y, callbacks=[keras.callbacks.TerminateOnNaN()], **arguments)
    assert models[1].history.epoch == models[0].history.epoch == [0]
    assert_same_history(models[1].history.history, models[0].history.history)
    assert_same_weights(models[1], models[0])


def test_evaluate_of_a_generator_begins_with_its_first_batch():
    """To tests/test_parity.py. `Trainer.evaluate` makes two adapters, and each takes a batch to look at."""

    def batches():
        for i in itertools.count():
            yield np.full((4, 12), i, "float32"), np.zeros(4, "int64")

    model = linear()
    expected = model.evaluate(batches(), steps=3, verbose=0)
    assert Trainer(model).evaluate(batches(), steps=3, verbose=0) == pytest.approx(expected)


def test_evaluate_names_its_own_argument():
    """To tests/test_bad_input.py. The message says steps_per_epoch."""
    with pytest.raises(ValueError, match=r"^steps must be at least 1; got 0"):
        Trainer(linear()).evaluate(X, Y, steps=0)


def test_a_generator_for_validation_is_not_drawn_for_epochs_that_are_rolled_back():
    """To tests/test_parity.py. Validation data that cannot be rewound has to be validated in step.

    `StreamedBatches.rewindable` says so; `Trainer._effective_lag` does not ask it.
    Passes where no batch of the undone epoch had been drawn yet, so it shows the bug only now and then.
    """

    def batches():
        for seed in itertools.count():
            yield arrays(16, seed)

    class Slower(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 1:
                self.model.optimizer.learning_rate = 1e-3

    histories = []
    for run in (lambda m: m.fit, lambda m: Trainer(m).fit):
        model = linear()
        data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)
        arguments = {"validation_data": batches(), "validation_steps": 2, "shuffle": False, "verbose": 0}
        run(model)(data, epochs=5, callbacks=[Slower()], **arguments)
        histories.append(model.history.history)
    assert_same_history(histories[1], histories[0])
