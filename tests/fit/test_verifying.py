"""`Trainer.verify`: equal fits are called so, others are told apart, and nothing is left changed."""

import itertools
import os
import random
import threading
import time
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

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


@pytest.mark.filterwarnings("error:__array__:DeprecationWarning:overlap_train.*")
def test_equal_fits_leave_everything_as_it_was_and_print_nothing(capsys, tmp_path):
    model = pools.sequential()
    callback = Remembers(model)
    trainer = Trainer(model)
    trainer.fit(X, Y, 32, verbose=0)
    optimizer, history, account = model.optimizer, model.history, trainer.account
    before = [np.copy(variable) for variable in (*model.variables, *optimizer.variables)]
    draws = random.getstate(), np.random.get_state()[1].tolist()
    board = keras.callbacks.TensorBoard(tmp_path)  # its own counters stand still where it does nothing
    told = verified(trainer, callbacks=[callback, board, keras.callbacks.History()])
    assert (told.equal, str(told), told.differences, told.messages) == (True, "equal bit for bit", (), ())
    after = [np.copy(variable) for variable in (*model.variables, *optimizer.variables)]
    assert all(map(np.array_equal, before, after))
    assert (random.getstate(), np.random.get_state()[1].tolist()) == draws
    assert (callback.losses, callback.model, model.history) == ([], None, history)
    assert (model.optimizer, trainer.account) == (optimizer, account)
    assert min(told.keras_s, told.overlapped_s) > 0
    assert capsys.readouterr().out == ""


@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")
@pytest.mark.by_default("PyDataset", "unbuilt")
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
    logged = keras.callbacks.LambdaCallback(on_epoch_end=lambda _, logs: logs.update(at=time.time()))
    told = verified(Trainer(pools.sequential()), callbacks=[AtEpoch(timed), logged])
    assert (told.verdict, told.differences) == ("equal bit for bit", ())


class Draws(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.lock, self.drawn = threading.Lock(), iter(slices(X, Y))


class Scaled(Rows):
    """Rows times a factor that others may set."""

    numbers = itertools.count()

    def __init__(self):
        super().__init__()
        self.lock, self.factor = threading.Lock(), 1.0

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return x * np.float32(self.factor), y


class LeavesOutCallbacks(Trainer):
    def fit(self, *args, callbacks, **kwargs):
        return super().fit(*args, **kwargs, callbacks=callbacks[1:])


class Mean(keras.losses.Loss):
    """Weighs by its own mean and by a factor that others may set."""

    def __init__(self, factor):
        super().__init__()
        self.factor, self.mean = factor, keras.Variable(0.0)

    def call(self, y_true, y_pred):
        loss = keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)
        self.mean.assign(0.9 * self.mean + 0.1 * keras.ops.mean(loss))
        return loss * (1 + self.mean) * self.factor.weight


class Seen(keras.metrics.Metric):
    """Counts all batches since the program began."""

    def __init__(self):
        super().__init__()
        self.batches = self.add_weight(initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.batches.assign_add(1.0)

    def result(self):
        return self.batches + 0.0

    def reset_state(self):
        pass


class Optimizers(keras.Sequential):
    """Trains by optimizers of which Keras knows none."""

    temperature = 1.0

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            logits = self(x, training=True) / self.temperature
            loss = self.compute_loss(x, y, logits)
        self.by_name["all"].apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        self._loss_tracker.update_state(loss)
        return self.compute_metrics(x, y, logits)


def program(kind):
    """A model, its data, a callback that changes something, and a function of all that may change."""
    model, data, calls, metric = linear(kind=Optimizers), Scaled(), [], Seen()
    model.by_name = {"all": keras.optimizers.SGD(0.1, momentum=0.9)}
    factor = types.SimpleNamespace(weight=tf.Variable(1.0) if kind == "variable" else 1.0)
    loss = Mean(factor)
    model.compile("sgd", loss, metrics=[metric], run_eagerly=kind == "object")

    def act(epoch, logs):
        calls.append(next(data.numbers))
        if kind == "data":
            data.factor = 2.0 + len(calls)
        elif kind == "variable":
            factor.weight.assign(2.0 + len(calls))
        elif kind == "object":
            factor.weight = 2.0 + len(calls)
        else:
            model.layers[0].trainable, model.temperature = False, 2.0 + len(calls)
            model.make_train_function(force=True)

    def seen():
        values = [
            np.asarray(v).tolist() for v in (*model.variables, loss.mean, metric.batches, factor.weight)
        ]
        flags = [variable.trainable for variable in model.variables]
        built = len(model.by_name["all"].variables)
        counts = [*calls, str(data.numbers), built]
        return counts, data.factor, data.order.tolist(), flags, values, vars(model).copy()

    return model, data, keras.callbacks.LambdaCallback(on_epoch_begin=act), seen


@pytest.mark.by_default("data", "model")
@pytest.mark.parametrize("kind", ["data", "variable", "object", "model"])
def test_what_callbacks_share_with_others_is_shared_and_put_back(kind):
    model, data, callback, seen = program(kind)
    before = seen()
    told = verified(Trainer(model), data, None, callbacks=[callback])
    assert (told.verdict, seen()) == ("equal bit for bit", before)
    told = verified(LeavesOutCallbacks(model), data, None, callbacks=[callback])
    assert told.verdict.startswith("different: fit, epoch 1"), told
    assert seen() == before


def test_shuffles_of_all_sets_draw_as_if_nothing_had_been_trained():
    rows, twin = (slices(X, Y).shuffle(96, seed=3).shuffle(32, seed=1) for _ in range(2))
    train, validation = rows.skip(32).batch(32), rows.take(32).batch(8)
    told = Trainer(pools.sequential()).verify(train, epochs=2, validation_data=validation)
    assert told.equal, told
    assert all((one[1] == other[1]).numpy() for one, other in zip(rows, twin, strict=True))


def test_an_error_of_keras_is_raised_and_the_model_put_back():
    model = pools.sequential()
    weights = model.get_weights()
    with pytest.raises(ZeroDivisionError):
        verified(Trainer(model), callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: 1 / 0)])
    assert all(map(np.array_equal, weights, model.get_weights()))


ANEW = tf.data.Dataset.random(rerandomize_each_iteration=True).take(2)


@pytest.mark.parametrize(
    ("settings", "arguments", "error", "message"),
    [
        ({}, {"x": iter([(X, Y)]), "y": None}, ValueError, "verify trains twice, and x is"),
        ({}, {"resume": CheckpointPolicy("checkpoints")}, ValueError, "which has no resume"),
        ({"preprocess": lambda x, y: (x, y)}, {}, ValueError, "which has no preprocess"),
        ({"validation": ValidationPolicy(every_steps=2)}, {}, ValueError, "has no validations inside epochs"),
        ({}, {"callbacks": [Draws()]}, TypeError, "the OwnedIterator of Draws; .*run overlap-train verify"),
        ({}, {"x": ANEW, "y": None}, ValueError, "of a Dataset.random stand; .*run overlap-train verify"),
        ({}, {"callbacks": keras.callbacks.CallbackList()}, TypeError, "verify adds a callback"),
        ({}, {"colour": "blue"}, TypeError, "verify takes the arguments of fit: got an unexpected"),
    ],
)
def test_what_cannot_be_compared_is_refused(settings, arguments, error, message):
    with pytest.raises(error, match=message):
        verified(Trainer(pools.sequential(), **settings), **arguments)
