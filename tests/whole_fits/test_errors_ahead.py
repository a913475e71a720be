"""What goes wrong in an epoch while an earlier one waits for its validation counts after that is delivered.

Under Keras the earlier epoch has been delivered by then. A callback that ended the training there has
prevented the error.
"""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import Trainer, ValidationPolicy
from overlap_train._fit.deliveries import Deliveries
from tests.networks import arrays, assert_alike
from tests.pools import sequential
from tests.whole_fits.comparing import AtEpoch, Rows, in_turn, slices

X, Y = arrays(40)
VALIDATION = arrays(32, 1)
NEXT = ValidationPolicy(overlap="always", max_lag=1)
FAILS = 2  # the first epoch, counted from 0, in which something goes wrong
ARRAYS = {"x": X, "y": Y, "batch_size": 8}


class Broken(Exception):
    pass


class Breaks(Rows):
    """Raises when the batches of one epoch are drawn, at its first or at a later one; perhaps only once."""

    def __init__(self, at, *, once=False):
        super().__init__(X, Y)
        self.at, self.once = at, once

    def __getitem__(self, index):
        if len(self.told) >= FAILS and index == self.at:
            if self.once:
                self.at = None  # who asks again gets the row
            raise Broken("no such row")
        return super().__getitem__(index)


def batches():
    for number in itertools.count():
        rows = slice(number % 5 * 8, number % 5 * 8 + 8)
        yield X[rows] * np.float32(1 + 0.01 * number), Y[rows]


def generator():
    yield from itertools.islice(batches(), 5 * FAILS + 2)
    raise Broken("no such row")


def dataset():
    """Divides by zero behind as many batches as two epochs have, and some."""
    rows = slices(X, Y).repeat(FAILS + 1).take(40 * FAILS + 8)
    wrong = tf.data.Dataset.from_tensors((X[0], Y[0])).map(
        lambda x, y: (tf.debugging.check_numerics(x / 0.0, "wrong row"), y)
    )
    return rows.concatenate(wrong.repeat(32)).batch(8)


class Raises(keras.callbacks.Callback):
    def __init__(self, hook):
        super().__init__()
        self.epoch = -1
        setattr(self, hook, self._raise if hook == "on_epoch_begin" else self._in_epoch)
        if hook != "on_epoch_begin":
            self.on_epoch_begin = self._begin

    def _begin(self, epoch, logs=None):
        self.epoch = epoch

    def _raise(self, epoch, logs=None):
        if epoch == FAILS:
            raise Broken("hook")

    def _in_epoch(self, batch, logs=None):
        if self.epoch == FAILS and batch == 3:
            raise Broken("hook")


def schedule(rates):
    return keras.callbacks.LearningRateScheduler(lambda epoch: rates[epoch])


# The data, or a callback, of which something goes wrong.
CASES = {
    "PyDataset, first batch": lambda: {"x": Breaks(0)},
    "PyDataset, later": lambda: {"x": Breaks(3)},
    "PyDataset, once": lambda: {"x": Breaks(3, once=True)},
    "generator": lambda: {"x": generator(), "steps_per_epoch": 5},
    "dataset": lambda: {"x": dataset(), "steps_per_epoch": 5},
    "schedule": lambda: schedule([0.1, 0.05]),
    "schedule of nothing": lambda: schedule([0.1, 0.1, None]),
    "on_epoch_begin": lambda: Raises("on_epoch_begin"),
    "on_train_batch_end": lambda: Raises("on_train_batch_end"),
}


class Notes(keras.callbacks.Callback):
    """Keeps what it is told, and the weights that it sees."""

    overlap_safe = True

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append((epoch, sorted(logs), [w.copy() for w in self.model.get_weights()]))


def stop(callback, epoch):
    """Ends the training behind the last epoch in which nothing goes wrong."""
    callback.model.stop_training |= epoch == FAILS - 1


def slow(callback, epoch):
    """Rolls each epoch that was trained ahead back."""
    callback.model.optimizer.learning_rate = 0.1 / (epoch + 2)


def each_case():
    """Yields every place of an error, alone and prevented; one of them behind a rollback, too."""
    for case in CASES:
        yield from ((case, None), (case, stop))
    yield "schedule", slow


@pytest.mark.parametrize(("case", "act"), list(each_case()))
@pytest.mark.by_default("on_epoch_begin-stop")
def test_the_epochs_before_it_are_delivered_as_under_keras(case, act):
    def run(trained):
        keras.utils.set_random_seed(4)
        notes, wrong, error = Notes(), CASES[case](), None
        data, callbacks = (wrong, []) if isinstance(wrong, dict) else (ARRAYS, [wrong])
        callbacks += [notes, *([AtEpoch(act)] if act else [])]
        try:
            trained.fit(**data, epochs=5, validation_data=VALIDATION, callbacks=callbacks, verbose=0)
        except Exception as raised:
            error = type(raised)
        assert (error is None) <= (act is stop)
        model = getattr(trained, "model", trained)
        # Keras's step that lacked its batch has drawn from the seed of a dropout layer, or has not.
        weights = [variable.numpy() for variable in model.trainable_variables]
        return error, dict(model.history.history), notes.seen, weights

    expected, actual, _ = in_turn(run, policy=NEXT)
    assert_alike(actual, expected, rtol=1e-4, atol=1e-5)


def test_what_a_validation_raises_comes_before_the_error_of_the_training_ahead():
    class Invalid(keras.utils.PyDataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            raise LookupError("validation rows")

    given = {"validation_data": Invalid(), "callbacks": [schedule([0.1])], "verbose": 0}
    with pytest.raises(Exception, match="validation rows"):
        Trainer(sequential(), validation=NEXT).fit(**ARRAYS, epochs=3, **given)


def test_behind_an_epoch_whose_callback_fails_none_is_delivered_though_another_is_being_trained(monkeypatch):
    def run(trained):
        notes = Notes()
        callbacks = [notes, AtEpoch(lambda callback, epoch: 1 / 0)]
        with pytest.raises(ZeroDivisionError):
            trained.fit(**ARRAYS, epochs=5, validation_data=VALIDATION, callbacks=callbacks, verbose=0)
        return [epoch for epoch, *_ in notes.seen]

    monkeypatch.setattr(Deliveries, "ready", lambda self: self.cursor.within and len(self) > 1)
    expected, actual, _ = in_turn(run)
    assert actual == expected == [0]
