"""`Trainer.verify`: equal fits are called so, others are told apart, and nothing is left changed."""

from __future__ import annotations

import os
import random
import threading
import time

import keras
import numpy as np
import pytest

from overlap_train import CheckpointPolicy, Trainer, ValidationPolicy
from tests import pools
from tests.networks import arrays, crossentropy, linear
from tests.whole_fits.comparing import AtEpoch, slices

X, Y = arrays(96)
VALIDATION = arrays(40, 1)


class Unshuffled(Trainer):
    """Trains on the rows in another order than Keras."""

    def fit(self, *args, **kwargs):
        return super().fit(*args, **{**kwargs, "shuffle": False})


class Failing(Trainer):
    def fit(self, *args, **kwargs):
        raise ZeroDivisionError("planted")


class Forgets(Trainer):
    def fit(self, *args, **kwargs):
        super().fit(*args, **kwargs)
        return keras.callbacks.History()


class Interrupted(Trainer):
    def fit(self, *args, **kwargs):
        history = super().fit(*args, **kwargs)
        history.ended = "interrupted by SIGINT"
        return history


class Remembers(keras.callbacks.Callback):
    def __init__(self, watched):
        super().__init__()
        self.watched, self.losses = watched, []

    def on_epoch_end(self, epoch, logs=None):
        assert self.watched is self.model, "a copy of it is not trained"
        self.losses.append(logs["loss"])


class Rows(keras.utils.PyDataset):
    """Shuffles its rows in place."""

    def __init__(self):
        super().__init__()
        self.order = np.arange(96)

    def __len__(self):
        return 3

    def __getitem__(self, index):
        rows = self.order[index * 32 : index * 32 + 32]
        return X[rows], Y[rows]

    def on_epoch_end(self):
        np.random.shuffle(self.order)


def verified(trainer, x=X, y=Y, **arguments):
    batch_size = {"batch_size": 32} if isinstance(x, np.ndarray) else {}
    return trainer.verify(x, y, epochs=2, validation_data=VALIDATION, **batch_size, **arguments)


def test_equal_fits_leave_everything_as_it_was_and_print_nothing(capsys):
    model = pools.sequential()
    callback = Remembers(model)
    trainer = Trainer(model)
    trainer.fit(X, Y, 32, verbose=0)
    optimizer, history, account = model.optimizer, model.history, trainer.account
    before = [np.copy(variable) for variable in (*model.variables, *optimizer.variables)]
    draws = random.getstate(), np.random.get_state()[1].tolist()
    told = verified(trainer, callbacks=[callback])
    assert (told.equal, str(told), told.differences, told.messages) == (True, "equal bit for bit", (), ())
    after = [np.copy(variable) for variable in (*model.variables, *optimizer.variables)]
    assert all(map(np.array_equal, before, after))
    assert (random.getstate(), np.random.get_state()[1].tolist()) == draws
    assert (callback.losses, callback.model, model.history) == ([], None, history)
    assert (model.optimizer, trainer.account) == (optimizer, account)
    assert min(told.keras_s, told.overlapped_s) > 0
    assert capsys.readouterr().out == ""


@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")
@pytest.mark.parametrize("kind", ["dataset", "PyDataset", "unbuilt"])
def test_data_that_draws_and_models_that_are_not_built_begin_alike(kind):
    model, x, y = pools.sequential(), X, Y
    if kind == "dataset":
        x, y = slices(X, Y).shuffle(96).batch(32), None
    elif kind == "PyDataset":
        x, y = Rows(), None
    else:
        model = keras.Sequential([keras.layers.Dense(8), keras.layers.Dropout(0.5), keras.layers.Dense(4)])
        model.compile("adam", crossentropy())
    told = verified(Trainer(model), x, y)
    assert told.verdict == "equal bit for bit", told


def test_the_first_difference_is_named():
    told = verified(Unshuffled(pools.sequential()))
    assert not told.equal
    assert told.verdict.startswith("different: fit, epoch 1, on_test_end")
    assert told.differences[0].size > 1e-4


@pytest.mark.parametrize(("kind", "place"), [(Failing, "error"), (Forgets, "fit, result")])
def test_what_only_one_of_them_raises_or_returns_is_a_difference(kind, place):
    told = verified(kind(pools.sequential()))
    assert not told.equal
    assert any(difference.place.startswith(place) for difference in told.differences)


def test_a_signal_ends_the_comparison():
    with pytest.raises(KeyboardInterrupt):
        verified(Interrupted(pools.sequential()))


def drawn(callback, epoch):
    """Sets weights that no seed decides."""
    callback.model.layers[0].bias.assign_add([os.urandom(1)[0] / 100 + 0.01] * 16)


def test_what_keras_has_twice_otherwise_cannot_be_told():
    model = linear(lambda: keras.layers.Dense(16))  # without an accuracy, which two runs may share by chance
    told = verified(Trainer(model), callbacks=[AtEpoch(drawn)])
    assert not told.equal
    assert told.verdict.startswith("cannot be told: two runs of Keras differ as well")


def timed(callback, epoch):
    callback.nanoseconds = time.perf_counter_ns()


def test_a_measured_time_is_no_difference():
    told = verified(Trainer(pools.sequential()), callbacks=[AtEpoch(timed)])
    assert (told.verdict, told.differences) == ("equal bit for bit", ())


class Locked(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


def test_an_error_of_keras_is_raised_and_the_model_put_back():
    model = pools.sequential()
    weights = model.get_weights()
    with pytest.raises(ZeroDivisionError):
        verified(Trainer(model), callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: 1 / 0)])
    assert all(map(np.array_equal, weights, model.get_weights()))


@pytest.mark.parametrize(
    ("settings", "arguments", "error", "message"),
    [
        ({}, {"x": iter([(X, Y)]), "y": None}, ValueError, "verify trains twice, and x is"),
        ({}, {"resume": CheckpointPolicy("checkpoints")}, ValueError, "which has no resume"),
        ({"preprocess": lambda x, y: (x, y)}, {}, ValueError, "which has no preprocess"),
        ({"validation": ValidationPolicy(every_steps=2)}, {}, ValueError, "has no validations inside epochs"),
        ({}, {"callbacks": [Locked()]}, TypeError, "and Locked cannot be copied"),
        ({}, {"callbacks": keras.callbacks.CallbackList()}, TypeError, "verify copies callbacks"),
        ({}, {"colour": "blue"}, TypeError, "verify takes the arguments of fit: got an unexpected"),
    ],
)
def test_what_cannot_be_compared_is_refused(settings, arguments, error, message):
    with pytest.raises(error, match=message):
        verified(Trainer(pools.sequential(), **settings), **arguments)
