"""Traces that are kept: a fit traces once, and again only where Keras would."""

from __future__ import annotations

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


def assert_same_histories(run):
    """Compares the histories of several fits of a model with those of Keras."""
    ours, theirs = run(lambda model: Trainer(model).fit), run(lambda model: model.fit)
    for mine, other in zip(ours, theirs, strict=True):
        networks.assert_same_history(mine, other)


@pytest.mark.nightly
@pytest.mark.parametrize("validates", [True, False], ids=["validated", "alone"])
@pytest.mark.parametrize(
    "second", [(64, 16), (70, 13), (64, 13)], ids=["full batches", "another size", "both"]
)
@pytest.mark.by_default("both-validated")
def test_a_second_fit_takes_the_trace_that_keras_takes(second, validates):
    """One for batches of any size serves batches of a known size, with what Python held when it was made."""
    x, y = networks.arrays(70)

    def run(fit):
        keras.utils.set_random_seed(3)
        model = Scaled()
        model.compile("sgd", networks.crossentropy())
        histories = []
        for count, size in ((70, 16), second):
            validation = (x[:count], y[:count]) if validates else None
            arguments = {"batch_size": size, "shuffle": False, "verbose": 0, "validation_data": validation}
            histories.append(fit(model)(x[:count], y[:count], **arguments).history)
            model.scale = 3.0
        return histories

    assert_same_histories(run)


class BySize(keras.Model):
    """Tells by its numbers how many rows Keras has traced it for."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(networks.CLASSES)

    def call(self, x):
        return self.dense(x) * (x.shape[0] or 5) * 0.1


def pipeline(x, y, size):
    rows = tf.data.Dataset.from_tensor_slices((x, y)).batch(size)
    return rows.map(lambda x, y: (x * 0.5, y)).prefetch(2)


SIZES = {"last smaller": [(70, 16)], "one batch": [(9, 16)], "another size": [(64, 16), (60, 10), (70, 16)]}


@pytest.mark.by_default("last smaller-pipeline")
@pytest.mark.parametrize("by", ["arrays", "pipeline"])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=list(SIZES))
def test_a_step_knows_as_many_rows_as_under_keras(sizes, by):
    """Up to 3.15 none where batches differ; later those of the first batch, and none for others."""
    x, y = networks.arrays(70)
    xv, yv = networks.arrays(37, 1)

    def run(fit):
        keras.utils.set_random_seed(3)
        model = BySize()
        model.compile("sgd", networks.crossentropy())
        histories = []
        for rows, size in sizes:
            data = (x[:rows], y[:rows])
            if by == "arrays":
                options = {"batch_size": size, "shuffle": False, "validation_data": (xv, yv)}
            else:
                data = (pipeline(*data, size),)
                options = {"validation_data": pipeline(xv, yv, size)}
            histories.append(fit(model)(*data, verbose=0, **options).history)
        return histories

    assert_same_histories(run)


def test_data_that_grows_needs_no_other_loop(monkeypatch):
    begun = []
    trace = ArrayLoop._trace
    monkeypatch.setattr(ArrayLoop, "_trace", lambda self, *a, **o: begun.append(1) or trace(self, *a, **o))
    x, y = networks.arrays(70)
    model = networks.sequential()
    for rows in (37, 45, 70):
        Trainer(model).fit(x[:rows], y[:rows], batch_size=16, verbose=0)
    assert begun == [1]
