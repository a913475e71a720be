"""Traces that are kept: a fit traces once, and again only where Keras would."""

from __future__ import annotations

import keras
import pytest

from overlap_train import Trainer
from overlap_train._keras.names import KerasTrainer
from overlap_train._training.loops import ArrayLoop
from tests import networks


class Scaled(keras.Model):
    """Has a number of Python's that its traces hold."""

    def __init__(self, *layers):
        super().__init__()
        self.dense = keras.layers.Dense(networks.CLASSES)
        self.others = list(layers)
        self.scale = 1.0

    def call(self, x):
        x = self.dense(x) * self.scale
        for layer in self.others:
            x = layer(x)
        return x


@pytest.mark.parametrize(
    ("second", "validates"),
    [
        pytest.param((64, 16), True, id="full batches"),
        pytest.param((70, 13), False, id="another size"),
        pytest.param((64, 16), False, id="full batches, no validation", marks=pytest.mark.nightly),
        pytest.param((70, 13), True, id="another size, validated", marks=pytest.mark.nightly),
        pytest.param((64, 13), False, id="both, no validation", marks=pytest.mark.nightly),
        pytest.param((64, 13), True, id="both"),
    ],
)
@pytest.mark.by_default("both")
def test_a_second_fit_takes_the_trace_that_keras_takes(second, validates):
    """One for batches of any size serves batches of a known size, with what Python held when it was made."""
    x, y = networks.arrays(70)
    rows, batch_size = second

    def run(fit):
        keras.utils.set_random_seed(3)
        model = Scaled()
        model.compile("sgd", networks.crossentropy())
        histories = []
        for count, size in ((70, 16), (rows, batch_size)):
            validation = (x[:count], y[:count]) if validates else None
            arguments = {"batch_size": size, "shuffle": False, "verbose": 0, "validation_data": validation}
            histories.append(fit(model, x[:count], y[:count], **arguments).history)
            model.scale = 3.0
        return histories

    ours = run(lambda model, *data, **arguments: Trainer(model).fit(*data, **arguments))
    theirs = run(lambda model, *data, **arguments: model.fit(*data, **arguments))
    for mine, other in zip(ours, theirs, strict=True):
        networks.assert_same_history(mine, other)


def test_data_that_grows_needs_no_other_loop(monkeypatch):
    begun = []
    trace = ArrayLoop._trace
    monkeypatch.setattr(ArrayLoop, "_trace", lambda self, *a, **o: begun.append(1) or trace(self, *a, **o))
    x, y = networks.arrays(70)
    model = networks.sequential()
    for rows in (37, 45, 70):
        Trainer(model).fit(x[:rows], y[:rows], batch_size=16, verbose=0)
    assert begun == [1]


def test_the_trace_of_a_stock_model_is_the_only_one(monkeypatch):
    model = networks.sequential()
    calls = []
    step = type(model).train_step

    def counted(self, data):
        calls.append(1)
        return step(self, data)

    monkeypatch.setattr(KerasTrainer, "train_step", counted)
    monkeypatch.setattr("overlap_train._keras.models.is_stock_method", lambda method: True)
    Trainer(model).fit(*networks.arrays(64), verbose=0, validation_data=networks.arrays(64))
    assert calls == [1]
