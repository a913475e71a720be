"""What the Python of the training and of the validation data share is used in the order of Keras."""

from __future__ import annotations

import array
import collections
import ctypes
import dataclasses
import itertools
import multiprocessing
import os
import random
import sys
import types
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import Trainer, ValidationSet
from overlap_train._data.streamed_batches import BatchStream
from overlap_train.errors import ValidationWorkerError
from tests.fit.python_data import AHEAD, Batches, X, Y, fit_both
from tests.networks import assert_same_history
from tests.pools import sequential

ROWS = tf.data.Dataset.from_tensor_slices((X, Y))
COUNT = 0


def drawn(generator):
    return lambda rows: rows + generator.normal(size=rows.shape)


def plainly(generator):
    return lambda rows: rows + generator.random()


def module():
    return drawn(np.random)


def numpys():
    return drawn(np.random.default_rng(4))


def legacy():
    return drawn(np.random.RandomState(4))


def pythons():
    return plainly(random.Random(4))


def bits():
    bits = np.random.PCG64(4)
    return lambda rows: rows + np.random.Generator(bits).random()


def seeds():
    sequence = np.random.SeedSequence(5)
    return lambda rows: rows + np.random.default_rng(sequence.spawn(1)[0]).normal(size=rows.shape)


def eager():
    tf.random.set_seed(6)
    return lambda rows: rows + tf.random.normal(rows.shape)


def tensorflows():
    generator = tf.random.Generator.from_seed(3)
    return lambda rows: rows + generator.normal(rows.shape)


def kerass():
    generator = keras.random.SeedGenerator(3)
    return lambda rows: rows + keras.random.normal(rows.shape, seed=generator)


def layer():
    noise = keras.layers.GaussianNoise(0.5, seed=1)
    return lambda rows: noise(tf.constant(rows), training=True)


def in_a_list():
    count = [0]

    def change(rows):
        count[0] += 1
        return rows + np.sin(count[0])

    return change


def in_a_cell():
    count = 0

    def change(rows):
        nonlocal count
        count += 1
        return rows + np.sin(count)

    return change


def in_a_dict():
    seen = {}

    def change(rows):
        seen[len(seen)] = True
        return rows * len(seen)

    return change


def in_a_queue():
    last = collections.deque([1.0], maxlen=3)

    def change(rows):
        last.append(last[-1] * 1.1)
        return rows * last[-1]

    return change


def on_an_object():
    state = SimpleNamespace(seen=0)

    class Counter:
        def __init__(self):
            self.seen = 0

        def __call__(self, rows):
            self.seen += 1
            return rows + self.seen + state.seen

    return Counter()


def on_a_class():
    class Counter:
        seen = 0

        def change(self, rows):
            Counter.seen += 1
            return rows + Counter.seen

    return Counter().change


def on_a_function():
    def change(rows):
        change.seen += 1
        return rows + change.seen

    change.seen = 0
    return change


def in_an_array():
    count = np.zeros(1)

    def change(rows):
        count[0] += 1
        return rows + count[0]

    return change


def in_a_variable():
    count = tf.Variable(0.0)
    return lambda rows: rows + count.assign_add(1.0).numpy()


def in_a_name():
    globals()["COUNT"] = 0

    def change(rows):
        global COUNT
        COUNT += 1
        return rows + np.sin(COUNT)

    return change


def in_a_module():
    module = types.ModuleType("settings_of_the_user")
    module.__file__ = __file__
    sys.modules[module.__name__] = module
    source = "import settings_of_the_user as u\ndef change(rows):\n u.level += 1\n return rows * u.level"
    module.level = 0
    space = {"__name__": __name__}
    exec(source, space)
    return space["change"]


def in_slots():
    class Slots:
        __slots__ = ("seen",)

    state = Slots()
    state.seen = 0

    def change(rows):
        state.seen += 1
        return rows + state.seen

    return change


def in_memory(make):
    def of():
        memory = make()

        def change(rows):
            memory[0] = memory[0] + 1
            return rows + memory[0]

        return change

    return of


def in_a_c_value():
    value = multiprocessing.Value("i", 0)

    def change(rows):
        value.value += 1
        return rows + value.value

    return change


def in_the_environment():
    os.environ["OVERLAP_TRAIN_TEST_LEVEL"] = "0"

    def change(rows):
        os.environ["OVERLAP_TRAIN_TEST_LEVEL"] = str(int(os.environ.get("OVERLAP_TRAIN_TEST_LEVEL", 0)) + 1)
        return rows * int(os.environ["OVERLAP_TRAIN_TEST_LEVEL"])

    return change


def in_a_library():
    """A generator that an installed package keeps for all its callers."""
    library = types.ModuleType("noise_library")
    library.__file__ = "site-packages/noise_library.py"
    sys.modules[library.__name__] = library
    source = (
        "import numpy\n_own = numpy.random.default_rng(1)\ndef noise(shape):\n return _own.normal(size=shape)"
    )
    exec(source, vars(library))
    noise = library.noise
    return lambda rows: rows + noise(rows.shape)


MEMORY = [
    in_memory(make)
    for make in (
        lambda: bytearray(3),
        lambda: array.array("d", [0.0]),
        lambda: np.zeros((300, 300, 2))[:, 0, 0],
        lambda: np.zeros(3_000_000),
        lambda: (ctypes.c_int * 2)(),
    )
]
NEW = [in_a_name, in_a_module, in_slots, in_a_c_value, in_the_environment, in_a_library, *MEMORY]
EVERYBODYS = (in_a_name, in_a_module, in_the_environment, in_a_library)
SHARED = [module, numpys, legacy, pythons, bits, seeds, eager, tensorflows, kerass, layer]
SHARED += [in_a_list, in_a_cell, in_a_dict, in_a_queue, on_an_object, on_a_class, on_a_function]
SHARED += [in_an_array, in_a_variable, *NEW]


@pytest.fixture(autouse=True)
def as_before(monkeypatch):
    monkeypatch.setenv("OVERLAP_TRAIN_TEST_LEVEL", "0")
    yield
    for name in ("noise_library", "settings_of_the_user"):
        sys.modules.pop(name, None)


def overlaps(trainer):
    return not any("in step" in message for message in trainer.messages)


@pytest.mark.parametrize("make", SHARED)
@pytest.mark.by_default("in_the_environment")
def test_whatever_both_change_gives_the_numbers_of_keras_ahead_of_the_validation(make):
    def arguments(_):
        change = make()
        return {"x": Batches(3, change), "validation_data": Batches(2, change)}

    assert overlaps(fit_both(arguments))


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

    assert overlaps(fit_both(arguments))


@pytest.mark.parametrize("freq", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_a_rollback_and_a_second_fit_draw_as_under_keras(freq):
    found = []
    for ours in (False, True):
        keras.utils.set_random_seed(5)
        model, change = sequential("sgd"), numpys()
        fit = Trainer(model, validation=AHEAD).fit if ours else model.fit
        data = {"x": Batches(3, change), "validation_data": Batches(2, change), "validation_freq": freq}
        slows = keras.callbacks.ReduceLROnPlateau("loss", patience=0, min_delta=9.0, factor=0.5)
        fits = [fit(**data, epochs=4, callbacks=[slows], verbose=0).history for _ in range(2)]
        found.append(fits)
    for expected, history in zip(*found, strict=True):
        assert_same_history(history, expected)


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


def test_batches_that_take_more_than_may_be_kept_are_drawn_as_they_are_evaluated():
    def arguments(_):
        change = in_a_cell()
        return {"x": Batches(3, change), "validation_data": Batches(6, change)}

    assert overlaps(fit_both(arguments, validation=dataclasses.replace(AHEAD, keep_bytes=1)))


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
