"""Batches that Python makes, and fits with Keras and with us that must agree."""

import keras
import numpy as np

from tests.networks import arrays
from tests.pools import sequential
from tests.whole_fits.comparing import assert_as_keras

X, Y = arrays(96)


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


def fit_both(arguments, *, rtol=1e-5):
    """Fits with Keras and with us, by arguments that a function makes of the model; returns the trainer."""

    def run(trained):
        keras.utils.set_random_seed(5)
        trained.fit(**{"epochs": 4, "verbose": 0} | arguments(getattr(trained, "model", trained)))

    return assert_as_keras(run, build=lambda: sequential("sgd"), rtol=rtol)
