"""Data whose passes differ in length: Keras fixes how many batches one may have, and when."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import Trainer, ValidationPolicy
from tests.networks import CLASSES, FEATURES, arrays, assert_same_history, crossentropy
from tests.pools import pooled
from tests.seeds import set_random_seed

X, Y = arrays(80)
VALIDATION = arrays(32, 1)
AHEAD = ValidationPolicy(max_lag=2, overlap="always")


@pooled
def network(**arguments):
    """Returns a model that draws nothing: Keras 3.15 begins one step too many where data ends unforeseen."""
    set_random_seed(7)
    model = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(CLASSES)])
    model.compile("sgd", crossentropy(), metrics=["accuracy"], **arguments)
    return model


class Changing(keras.utils.PyDataset):
    """Has another length from one pass to the next, of which it decides when one begins or when one ends.

    Without workers: how many batches Keras's threads draw beyond a pass, and give in the next one, is luck.
    """

    def __init__(self, lengths, *, hook="on_epoch_end"):
        super().__init__()
        self.lengths, self.passes, self.told = lengths, 0, []
        for each in ("on_epoch_begin", "on_epoch_end"):
            setattr(self, each, lambda each=each: self._hear(each, counts=each == hook))

    def _hear(self, hook, *, counts):
        self.told.append(hook)
        self.passes += counts

    def __len__(self):
        return self.lengths[self.passes % len(self.lengths)]

    def __getitem__(self, index):
        return X[index * 8 : index * 8 + 8], Y[index * 8 : index * 8 + 8]


def assert_as_keras(make, told=lambda data: None, **arguments):
    """Fits with Keras and with us.

    Args:
        make: returns the training and the validation data.
        told: returns what of either is compared.
        arguments: of `fit`; the callbacks by a function that makes them, and one that makes the model.
    """
    found, build, callbacks = [], arguments.pop("build", network), arguments.pop("callbacks", list)
    for ours in (False, True):
        model = build()
        train, validation = make()
        fit = Trainer(model, validation=AHEAD).fit if ours else model.fit
        x = dict(zip("xy", train if isinstance(train, tuple) else (train,), strict=False))
        given = {"validation_data": validation, "callbacks": callbacks(), **arguments}
        fit(**x, epochs=6, shuffle=False, verbose=0, **given)
        found.append((model, told(train), told(validation)))
    (expected, *heard), (actual, *heard_by_ours) = found
    assert actual.history.epoch == expected.history.epoch
    assert_same_history(actual.history.history, expected.history.history)
    for ours, theirs in zip(actual.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    assert heard_by_ours == heard


def told_to(data):
    return getattr(data, "told", None)


@pytest.mark.nightly
@pytest.mark.parametrize("hook", ["on_epoch_end", "on_epoch_begin"])
@pytest.mark.parametrize("lengths", [(3, 4), (2, 5, 3)])
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.by_default("lengths1-on_epoch_end")
def test_a_validation_has_as_many_batches_as_were_there_when_it_was_rewound(lengths, hook):
    assert_as_keras(lambda: ((X, Y), Changing(lengths, hook=hook)), told_to)


@pytest.mark.parametrize("steps", [2, 4])
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.by_default("4")
def test_steps_that_are_asked_for_do_not_lengthen_it(steps):
    assert_as_keras(lambda: ((X, Y), Changing((3, 5, 4))), told_to, validation_steps=steps)


@pytest.mark.by_default("True")
@pytest.mark.parametrize("eagerly", [False, True])
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_evaluate_asks_for_the_length_each_time(eagerly):
    found = []
    for ours in (False, True):
        model, data = network(run_eagerly=eagerly), Changing((3, 4, 5))
        evaluate = Trainer(model).evaluate if ours else model.evaluate
        found.append([evaluate(data, verbose=0, return_dict=True) for _ in range(3)])
    for ours, theirs in zip(*found, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5)


@pytest.mark.parametrize("steps", [None, 2, 5])
@pytest.mark.parametrize("hook", ["on_epoch_end", "on_epoch_begin"])
@pytest.mark.parametrize("lengths", [(3, 4), (5, 2, 3)])
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.by_default("lengths0-on_epoch_begin-None")
def test_training_data_keeps_the_length_that_it_had_when_the_fit_began(lengths, hook, steps):
    assert_as_keras(lambda: (Changing(lengths, hook=hook), VALIDATION), told_to, steps_per_epoch=steps)


class Slows(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch in (1, 3):
            self.model.optimizer.learning_rate = self.model.optimizer.learning_rate / 2


def until(largest, seed=5, size=4):
    """Returns rows in an order that changes, each pass of which ends before the first large one."""
    rows = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(80, seed=seed)
    return rows.take_while(lambda x, y: x[0] < largest).batch(size)


def thinned():
    """Returns rows of which each pass has another part."""
    rows = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8).shuffle(10, seed=3)
    return (
        rows.scan(np.int64(0), lambda n, row: (n + row[1][0], (n + row[1][0], row)))
        .filter(lambda n, row: n % 3 == 0)
        .map(lambda n, row: row)
    )


def in_groups():
    return network(steps_per_execution=3)


DRAWN = {
    "long first": lambda: until(1.6, 0),
    "short first": lambda: until(1.6, 2),
    "other rows": lambda: until(1.2, 1),
    "thinned": thinned,
}


@pytest.mark.parametrize("steps", [None, 3])
@pytest.mark.parametrize("data", DRAWN)
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.by_default("long first-3")
def test_the_first_pass_of_unknown_length_tells_how_long_the_others_may_be(data, steps):
    make = DRAWN[data]
    lengths = {sum(1 for _ in passes) for passes in [make()] for _ in range(6)}
    assert len(lengths) > 1
    assert_as_keras(lambda: (make(), VALIDATION), steps_per_epoch=steps)


@pytest.mark.parametrize("steps", [None, 2, 5])
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.by_default("2")
def test_a_training_that_went_back_learns_it_again(steps):
    assert_as_keras(lambda: (until(1.6, 2), VALIDATION), callbacks=lambda: [Slows()], steps_per_epoch=steps)


@pytest.mark.nightly
@pytest.mark.parametrize("steps", [None, 4, 6])
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.by_default("None")
def test_groups_of_steps_count_as_a_whole(steps):
    assert_as_keras(lambda: (until(1.6, 2), VALIDATION), build=in_groups, steps_per_epoch=steps)


def never():
    return tf.data.Dataset.from_tensor_slices((X, Y)).filter(lambda x, y: False).batch(8)


def later():
    """Returns data whose passes are empty at first."""
    return until(-0.4, 9, 8)


@pytest.mark.parametrize("validation", [VALIDATION, None])
@pytest.mark.parametrize("make", [never, later])
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.by_default("later-validation0", "never-None")
def test_training_goes_on_behind_a_pass_without_a_batch(make, validation):
    set_random_seed(7)  # as before a fit
    data = later()
    lengths = [sum(1 for _ in data) for _ in range(6)]
    assert not lengths[0], "it begins with an empty pass"
    assert any(lengths), "and has others"
    assert_as_keras(lambda: (make(), validation))


def test_a_pass_without_a_batch_is_warned_of():
    with pytest.warns(UserWarning, match="Your input ran out of data"):
        Trainer(network()).fit(never(), epochs=1, verbose=0)
