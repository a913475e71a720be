"""Traces that are kept: a fit traces once, and again only where Keras would."""

import keras
import pytest
import tensorflow as tf

from overlap_train import Trainer
from overlap_train._training.loops import ArrayLoop
from tests import networks


class Scaled(keras.Model):
    """Has a number of Python's that its traces hold."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(networks.CLASSES)
        self.scale = 1.0

    def call(self, x):
        return self.dense(x) * self.scale


class BySize(Scaled):
    """Tells by its numbers how many rows Keras has traced it for."""

    def call(self, x):
        return self.dense(x) * (x.shape[0] or 5) * 0.1


def assert_same_histories(kind, fits):
    """Compares the histories of several fits of a model, given by their arguments, with those of Keras."""
    histories = []
    for wrap in (Trainer, lambda model: model):
        keras.utils.set_random_seed(3)
        model = kind()
        model.compile("sgd", networks.crossentropy())
        for arguments in fits:
            histories.append(wrap(model).fit(**arguments, shuffle=False, verbose=0).history)
            model.scale = 3.0
    for ours, theirs in zip(histories[: len(fits)], histories[len(fits) :], strict=True):
        networks.assert_same_history(ours, theirs)


@pytest.mark.nightly
@pytest.mark.parametrize("validates", [True, False], ids=["validated", "alone"])
@pytest.mark.parametrize(
    "second", [(64, 16), (70, 13), (64, 13)], ids=["full batches", "another size", "both"]
)
def test_a_second_fit_takes_the_trace_that_keras_takes(second, validates):
    """One for batches of any size serves batches of a known size, with what Python held when it was made."""
    x, y = networks.arrays(70)
    fits = []
    for rows, size in ((70, 16), second):
        data = (x[:rows], y[:rows])
        validation = data if validates else None
        fits.append({"x": data[0], "y": data[1], "batch_size": size, "validation_data": validation})
    assert_same_histories(Scaled, fits)


def pipeline(x, y, size):
    rows = tf.data.Dataset.from_tensor_slices((x, y)).batch(size)
    return rows.map(lambda x, y: (x * 0.5, y)).prefetch(2)


SIZES = {"last smaller": [(70, 16)], "one batch": [(9, 16)], "another size": [(64, 16), (60, 10), (70, 16)]}


@pytest.mark.by_default("last smaller-pipeline")
@pytest.mark.parametrize("by", ["arrays", "pipeline"])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=list(SIZES))
def test_a_step_knows_as_many_rows_as_under_keras(sizes, by):
    """Up to 3.15 none where batches differ; later those of the first batch, and none for others."""
    (x, y), validation = networks.arrays(70), networks.arrays(37, 1)
    fits = []
    for rows, size in sizes:
        if by == "arrays":
            data = {"x": x[:rows], "y": y[:rows], "batch_size": size, "validation_data": validation}
        else:
            data = {"x": pipeline(x[:rows], y[:rows], size), "validation_data": pipeline(*validation, size)}
        fits.append(data)
    assert_same_histories(BySize, fits)


def test_data_that_grows_needs_no_other_loop(monkeypatch):
    begun = []
    trace = ArrayLoop._trace
    monkeypatch.setattr(ArrayLoop, "_trace", lambda self, *a, **o: begun.append(1) or trace(self, *a, **o))
    x, y = networks.arrays(70)
    model = networks.sequential()
    for rows in (37, 45, 70):
        Trainer(model).fit(x[:rows], y[:rows], batch_size=16, verbose=0)
    assert begun == [1]
