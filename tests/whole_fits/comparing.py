"""What whole fits share: a run by Keras compared with one by a trainer, and a fit that is killed and resumed.

A run is a function of a `keras.Model` or of a `Trainer`, which both have `fit` and `evaluate`. It makes its
data and its callbacks anew each time.
"""

import keras
import pytest
import tensorflow as tf

from overlap_train import ExecutionPlan, Trainer, ValidationPolicy
from tests.killing import Killed, Kills
from tests.networks import VALIDATION_ROWS, Outcome, arrays, assert_alike, assert_same_outcome
from tests.pools import sequential

X, Y = arrays()
VALIDATION = arrays(VALIDATION_ROWS, 1)
AHEAD = ValidationPolicy(max_lag=2, overlap="always")
IN_STEP = ValidationPolicy(max_lag=0)
# Epochs are delivered between two of many calls.
SHORT_CALLS = ExecutionPlan(steps_per_call=1, batch_splits=1, jit=False)


def in_turn(run, build=sequential, policy=AHEAD, execution=None):
    """Return what a run by Keras returns, what one by a trainer returns, and the trainer."""
    expected = run(build())
    trainer = Trainer(build(), validation=policy, execution=execution)
    return expected, run(trainer), trainer


def assert_as_keras(run, *policies, build=sequential, execution=None, rtol=1e-5):
    """Compare what a run returns, its history, weights and other variables; return the last trainer."""
    model = build()
    returned, expected = run(model), Outcome.of(model)
    for policy in policies or (AHEAD,):
        trainer = Trainer(build(), validation=policy, execution=execution)
        assert_alike(run(trainer), returned, rtol)
        assert_same_outcome(trainer.model, expected, rtol)
    return trainer


def assert_returns_as_keras(run, build=sequential, policy=AHEAD):
    """Compare only what a run returns; return that of the trainer's."""
    expected, actual, _ = in_turn(run, build, policy)
    assert_alike(actual, expected)
    return actual


def waits(trainer):
    """Return whether a trainer said why it validates in step."""
    return any("in step with the training:" in message for message in trainer.messages)


def goes_back(trainer):
    return any("back to the end of epoch" in message for message in trainer.messages)


def killed_and_resumed(fit, **kill):
    """Call `fit(callback)` with one that ends it, and once more; return the trainer of the second call."""
    with pytest.raises(Killed):
        fit(Kills(**kill))
    trainer = fit(Kills())
    assert any(message.startswith("resumed") for message in trainer.messages)
    return trainer


def slices(x=X, y=Y):
    return tf.data.Dataset.from_tensor_slices((x, y))


def noisy(generator):
    """Return a function of a pipeline that adds what a `tf.random.Generator` draws."""
    return lambda x, y: (x + generator.normal(tf.shape(x)), y)


def counted(count):
    """Return a function of a pipeline that counts its calls in a variable, and multiplies by the count."""
    return lambda x, y: (x * tf.cast(1 + count.assign_add(1) % 7, x.dtype), y)


def layered(*layers):
    """Return a function of a pipeline that calls layers which draw."""
    stack = keras.Sequential(list(layers) or [keras.layers.GaussianNoise(0.5, seed=3)])
    return lambda x, y: (stack(x, training=True), y)


class Rows(keras.utils.PyDataset):
    """Batches of rows; notes in `told` that an epoch of it has ended."""

    def __init__(self, x=X, y=Y, size=8):
        super().__init__()
        self.x, self.y, self.size, self.told = x, y, size, []

    def __len__(self):
        return len(self.x) // self.size

    def __getitem__(self, index):
        rows = slice(index * self.size, (index + 1) * self.size)
        return self.x[rows], self.y[rows]

    def on_epoch_end(self):
        self.told.append("data ends")


class AtEpoch(keras.callbacks.Callback):
    """Calls a function of itself and the epoch at epochs' ends; remembers nothing."""

    def __init__(self, act):
        super().__init__()
        self._act = act

    def get_state(self):
        return {}

    def set_state(self, state):
        pass

    def on_epoch_end(self, epoch, logs=None):
        self._act(self, epoch)


def halves(*epochs):
    """Return a callback that halves the learning rate after some epochs, or after each."""

    def halve(callback, epoch):
        if epoch in epochs or not epochs:
            optimizer = callback.model.optimizer
            optimizer.learning_rate = float(optimizer.learning_rate) / 2

    return AtEpoch(halve)
