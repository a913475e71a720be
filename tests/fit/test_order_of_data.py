"""What the Python of the training and of the validation data share is used in the order of Keras."""

import itertools

import keras
import numpy as np
import pytest

from overlap_train import Trainer, ValidationSet
from overlap_train._data.streamed_batches import BatchStream
from overlap_train.errors import ValidationWorkerError
from tests.fit.python_data import Batches, fit_both
from tests.pools import sequential
from tests.whole_fits.comparing import AHEAD, waits


def of_numpy():
    generator = np.random.default_rng(4)
    return lambda rows: rows + generator.normal(size=rows.shape)


def of_keras():
    generator = keras.random.SeedGenerator(3)
    return lambda rows: rows + keras.random.normal(rows.shape, seed=generator)


def in_a_cell():
    count = 0

    def change(rows):
        nonlocal count
        count += 1
        return rows + np.sin(count)

    return change


SHARED = [of_numpy, of_keras, in_a_cell]


@pytest.mark.parametrize("make", SHARED)
@pytest.mark.by_default("of_keras")
def test_whatever_both_change_gives_the_numbers_of_keras_ahead_of_the_validation(make):
    def arguments(_):
        change = make()
        return {"x": Batches(3, change), "validation_data": Batches(2, change)}

    assert not waits(fit_both(arguments))


def one_stream():
    stream = iter(np.sin(np.arange(10_000)))
    return [Batches(count, lambda rows: rows + next(stream)) for count in (3, 2)]


class Levelled(Batches):
    """Rows times a level that lies in settings."""

    epoch = 0

    def __init__(self, count, settings):
        super().__init__(count, lambda rows: rows * (1 + settings["level"]))
        self.settings = settings


class Rising(Levelled):
    """Sets the level in every third epoch."""

    def on_epoch_end(self):
        self.epoch += 1
        self.settings["level"] = self.epoch // 3


def levels():
    settings = {"level": 0}
    return Rising(3, settings), Levelled(2, settings)


def levels_of_the_validation():
    settings = {"level": 0}
    return Levelled(3, settings), Rising(2, settings)


@pytest.mark.by_default("levels_of_the_validation")
@pytest.mark.parametrize("make", [one_stream, levels, levels_of_the_validation])
def test_a_stream_or_a_level_of_both_gives_the_numbers_of_keras(make):
    def arguments(_):
        train, validation = make()
        return {"x": train, "validation_data": validation, "epochs": 7}

    assert not waits(fit_both(arguments))


def test_several_sets_are_drawn_one_behind_the_other():
    drawn_by = []

    def data(name, count):
        return Batches(count, lambda rows: drawn_by.append(name) or rows)

    sets = {"first": data("first", 2), "second": data("second", 2)}
    trainer = Trainer(sequential("sgd"), validation=AHEAD)
    trainer.fit(data("train", 3), epochs=4, validation_data=sets, verbose=0)
    names = [name for name, before in itertools.pairwise([*drawn_by, None]) if name != before]
    assert names[-9:] == ["train", "first", "second"] * 3


@pytest.mark.parametrize(("concurrent", "passes"), [(True, 0), (False, 3)])
def test_a_set_that_may_be_drawn_meanwhile_is_not_drawn_before(concurrent, passes, monkeypatch):
    drawn_before = []
    keep = BatchStream.keep_ahead
    monkeypatch.setattr(BatchStream, "keep_ahead", lambda *args: drawn_before.append(keep(*args)))
    data = ValidationSet(Batches(2), concurrent=concurrent)
    fit = Trainer(sequential("sgd"), validation=AHEAD).fit
    fit(Batches(3), epochs=3, validation_data={"noisy": data}, verbose=0)
    assert len(drawn_before) == passes


def test_an_error_of_the_data_ends_the_fit():
    def fails(rows):
        fails.batches += 1
        if fails.batches > 5:
            raise KeyError("no such row")
        return rows

    fails.batches = 0

    trainer = Trainer(sequential("sgd"), validation=AHEAD)
    with pytest.raises(ValidationWorkerError, match="no such row"):
        trainer.fit(Batches(3), epochs=4, validation_data=Batches(2, fails), verbose=0)
