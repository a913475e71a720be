"""Data whose passes differ in length: Keras fixes how many batches one may have, and when."""

from __future__ import annotations

import keras
import numpy as np
import pytest

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
    """Has another length from one pass to the next, of which it decides when one begins or when one ends."""

    def __init__(self, lengths, *, hook="on_epoch_end", workers=1):
        super().__init__(workers=workers)
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
        arguments: of `fit`.
    """
    found = []
    for ours in (False, True):
        model = network()
        train, validation = make()
        fit = Trainer(model, validation=AHEAD).fit if ours else model.fit
        x = dict(zip("xy", train if isinstance(train, tuple) else (train,), strict=False))
        fit(**x, validation_data=validation, epochs=5, shuffle=False, verbose=0, **arguments)
        found.append((model, told(train), told(validation)))
    (expected, *heard), (actual, *heard_by_ours) = found
    assert actual.history.epoch == expected.history.epoch
    assert_same_history(actual.history.history, expected.history.history)
    for ours, theirs in zip(actual.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    assert heard_by_ours == heard


def told_to(data):
    return getattr(data, "told", None)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("hook", ["on_epoch_end", "on_epoch_begin"])
@pytest.mark.parametrize("lengths", [(3, 4), (2, 5, 3)])
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_a_validation_has_as_many_batches_as_were_there_when_it_was_rewound(lengths, hook, workers):
    assert_as_keras(lambda: ((X, Y), Changing(lengths, hook=hook, workers=workers)), told_to)


@pytest.mark.parametrize("steps", [2, 4])
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_steps_that_are_asked_for_do_not_lengthen_it(steps):
    assert_as_keras(lambda: ((X, Y), Changing((3, 5, 4))), told_to, validation_steps=steps)


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
def test_training_data_keeps_the_length_that_it_had_when_the_fit_began(lengths, hook, steps):
    assert_as_keras(lambda: (Changing(lengths, hook=hook), VALIDATION), told_to, steps_per_epoch=steps)
