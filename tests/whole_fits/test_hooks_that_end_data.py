"""A hook of a batch that raises StopIteration ends the batches of an epoch or a validation, as in Keras."""

from __future__ import annotations

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import Trainer, ValidationPolicy
from tests.networks import arrays, assert_same_history, assert_same_weights
from tests.pools import pooled, sequential
from tests.whole_fits.test_logs_of_hooks import grouped

X, Y = arrays(40)
VALIDATION = arrays(32, 1)
TRAIN = ("on_train_batch_begin", "on_train_batch_end")
TEST = ("on_test_batch_begin", "on_test_batch_end")


def nightly(*values):
    return pytest.param(*values, marks=pytest.mark.nightly)


ENDS_AND_BEGINNINGS = [TRAIN[0], nightly(TRAIN[1]), nightly(TEST[0]), TEST[1]]


class Told(keras.utils.PyDataset):
    def __init__(self):
        super().__init__()
        self.told = []

    def __len__(self):
        return 5

    def __getitem__(self, index):
        return X[index * 8 : index * 8 + 8], Y[index * 8 : index * 8 + 8]

    def on_epoch_end(self):
        self.told.append("end")


def dataset():
    return tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(40, seed=3).batch(8)


DATA = {
    "arrays": lambda: X,
    "dataset": dataset,
    "unknown": lambda: dataset().filter(lambda x, y: True),
    "endless": lambda: dataset().repeat(),
    "PyDataset": Told,
}


class Ends(keras.callbacks.Callback):
    """Says at one batch that the data has ended, and notes what it is told."""

    def __init__(self, hook, at, error, epochs):
        super().__init__()
        self.calls, self.epoch = [], 0

        def end(number, logs=None):
            self.calls.append((hook, number, sorted(logs)))
            if number == at and self.epoch in epochs:
                raise error

        setattr(self, hook, end)

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_epoch_end(self, epoch, logs=None):
        self.calls.append(("epoch", epoch, sorted(logs)))

    def on_test_end(self, logs=None):
        self.calls.append(("test", None, sorted(logs)))


def trained(how, data, hook, at, error, *, build=sequential, epochs=(0, 1, 2), **arguments):
    """Returns the model, the callback's calls, what the data was told, and the warnings."""
    model, callback, x = build(), Ends(hook, at, error, epochs), DATA[data]()
    if data == "arrays":
        arguments |= dict(y=Y, batch_size=8)
    policy = ValidationPolicy(max_lag=0 if how == "in step" else 1)
    fit = model.fit if how == "keras" else Trainer(model, validation=policy).fit
    arguments |= dict(epochs=3, verbose=0, shuffle=False, validation_data=VALIDATION, validation_batch_size=8)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(x, callbacks=[callback], **arguments)
    said = [str(w.message) for w in caught if issubclass(w.category, UserWarning)]
    return model, callback.calls, getattr(x, "told", None), said


def assert_as_keras(data, hook, at, error=StopIteration, hows=("ahead",), **options):
    expected, *seen = trained("keras", data, hook, at, error, **options)
    assert len(seen[2]) == len(options.get("epochs", "123"))
    for how in hows:
        model, *found = trained(how, data, hook, at, error, **options)
        assert found == seen
        assert_same_history(model.history.history, expected.history.history)
        assert_same_weights(model, expected)
        assert int(model.optimizer.iterations) == int(expected.optimizer.iterations)


def evaluated():
    model = sequential()
    model.evaluate(*VALIDATION, verbose=0)  # Keras reads no metric that no batch has built
    return model


@pytest.mark.parametrize("at", [0, 1, nightly(4)])
@pytest.mark.parametrize("hook", TRAIN)
@pytest.mark.by_default("on_train_batch_end-0")
def test_training_goes_on_with_the_next_epoch(hook, at):
    assert_as_keras("arrays", hook, at, hows=("ahead", "in step"), build=evaluated)


@pytest.mark.parametrize("at", [0, 1, nightly(3)])
@pytest.mark.parametrize("hook", TEST)
@pytest.mark.by_default("on_test_batch_end-0")
def test_a_validation_is_that_of_its_first_batches(hook, at):
    assert_as_keras("arrays", hook, at, hows=("ahead", "in step"))


@pytest.mark.parametrize("hook", ENDS_AND_BEGINNINGS)
def test_the_end_that_tensorflow_raises_is_one_too(hook):
    assert_as_keras("arrays", hook, 1, tf.errors.OutOfRangeError(None, None, "no more"))


@pytest.mark.nightly
@pytest.mark.parametrize("hook", TRAIN)
@pytest.mark.parametrize(
    ("data", "steps"),
    [
        ("dataset", None),
        nightly("dataset", 4),
        ("unknown", None),
        nightly("unknown", 4),
        nightly("endless", 3),
    ],
)
@pytest.mark.by_default("unknown-None-on_train_batch_begin")
def test_the_next_epoch_begins_the_data_again(data, steps, hook):
    assert_as_keras(data, hook, 1, steps_per_epoch=steps)
    if steps is None:  # else Keras's iterators go on over the ends of epochs
        assert_as_keras(data, hook, 2, steps_per_epoch=steps, epochs=(0,) if data == "dataset" else (0, 1, 2))


@pytest.mark.by_default("on_train_batch_begin")
@pytest.mark.parametrize("hook", TRAIN)
def test_data_is_told_once_that_its_epoch_has_ended(hook):
    assert_as_keras("PyDataset", hook, 1, epochs=(0, 2))


@pytest.mark.by_default("on_test_batch_end")
@pytest.mark.parametrize("hook", ENDS_AND_BEGINNINGS)
def test_groups_of_steps_end_too(hook):
    assert_as_keras("arrays", hook, 2 + hook.endswith("end"), build=pooled(grouped))


@pytest.mark.by_default("False-on_test_batch_begin-0", "False-on_test_batch_end-1")
@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize("hook", TEST)
@pytest.mark.parametrize("declared", [False, nightly(True)])
def test_an_evaluate_is_that_of_its_first_batches(declared, hook, at):
    def run(evaluate):
        callback = Ends(hook, at, StopIteration, (0,))
        callback.overlap_safe = declared
        with pytest.warns(UserWarning, match="Your input ran out of data"):
            result = evaluate(*VALIDATION, batch_size=8, verbose=0, callbacks=[callback], return_dict=True)
        return result, callback.calls

    expected, calls = run(sequential().evaluate)
    found, found_calls = run(Trainer(sequential()).evaluate)
    assert found.keys() == expected.keys()
    np.testing.assert_allclose(list(found.values()), list(expected.values()), rtol=1e-5)
    assert found_calls == calls
