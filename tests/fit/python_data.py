"""Batches that Python makes, and fits with Keras and with us that must agree."""

from __future__ import annotations

import keras
import numpy as np

from overlap_train import Trainer, ValidationPolicy
from tests.networks import arrays, assert_same_history
from tests.pools import sequential

X, Y = arrays(96)
AHEAD = ValidationPolicy(max_lag=2, overlap="always")


class Batches(keras.utils.PyDataset):
    """Batches to whose rows a function does something when they are drawn."""

    def __init__(self, count, change=lambda rows: rows):
        super().__init__()
        self._count, self._change = count, change

    def __len__(self):
        return self._count

    def __getitem__(self, index):
        rows = slice(index * 16, index * 16 + 16)
        return np.asarray(self._change(X[rows]), "float32"), Y[rows]


def fit_both(arguments, *, rtol=1e-5, validation=AHEAD):
    """Fits with Keras and with us, and compares; returns the trainer.

    Args:
        arguments: of a model: those of `fit`, made anew for each.
        rtol: of the histories.
        validation: the policy of ours.
    """
    found = []
    for ours in (False, True):
        keras.utils.set_random_seed(5)
        model = sequential("sgd")
        trainer = Trainer(model, validation=validation)
        fit = trainer.fit if ours else model.fit
        found.append(fit(**{"epochs": 4, "verbose": 0} | arguments(model)).history)
    assert_same_history(*reversed(found), rtol=rtol)
    return trainer
