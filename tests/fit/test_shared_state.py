"""What the Python of the training and of the validation share is found, and whether either changes it."""

from __future__ import annotations

import array
import collections
import ctypes
import itertools
import logging
import multiprocessing
import os
import random
import sys
import threading
import types
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train._data.pipeline import calls_python
from overlap_train._fit import shared_state
from overlap_train._fit.shared_state import SharedState, python_in
from overlap_train._keras.data import Arrays
from tests.fit.python_data import Batches, X, Y, fit_both

ROWS = tf.data.Dataset.from_tensor_slices((X, Y))
PRIVATE = np.random.default_rng(3)
OTHERS = random.Random(2)
COUNT = 0


def feed_of(data):
    return SimpleNamespace(runs_python=True, python_sources=[data])


def watched(training, validation):
    return SharedState(feed_of(training), {"": validation})


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


@pytest.fixture
def unread(monkeypatch):
    """Code whose source is not at hand, which can only be watched."""
    monkeypatch.setattr(shared_state, "may_write", lambda things: [])


@pytest.fixture(autouse=True)
def as_before(monkeypatch):
    monkeypatch.setenv("OVERLAP_TRAIN_TEST_LEVEL", "0")
    yield
    for name in ("noise_library", "settings_of_the_user"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("make", SHARED)
def test_what_a_validation_changes_is_found_out(make, unread):
    change = make()
    validation = Batches(2, change)
    shared = watched(Batches(3, change), validation)
    assert shared.open
    assert shared.reason is None
    shared.begin()
    validation[0]
    assert shared.end()
    assert not shared.open
    assert not shared.end(), "it is known by now"


@pytest.mark.parametrize("make", SHARED)
def test_what_each_has_for_itself_is_not_missed(make):
    if make in (module, eager, *EVERYBODYS):
        pytest.skip("there is but one")
    validation = Batches(2, make())
    shared = watched(Batches(3, make()), validation)
    shared.begin()
    validation[0]
    assert not shared.end()


@pytest.mark.parametrize(
    "make", [in_a_list, in_a_cell, in_a_dict, on_an_object, on_a_class, in_a_variable, *NEW]
)
def test_what_the_training_changes_before_it_is_found_out(make, unread):
    change = make()
    training = Batches(3, change)
    shared = watched(training, Batches(2, change))
    training[0]
    shared.begin()
    assert shared.end() == (make is not in_a_library), "who alone draws draws in its own order"


@pytest.mark.parametrize("make", [module, numpys, pythons, kerass, tensorflows])
def test_a_generator_that_only_the_training_draws_from_is_none_of_the_validation_s(make):
    change = make()
    training = Batches(3, change)
    shared = watched(training, Batches(2, change))
    training[0]
    shared.begin()
    assert not shared.end()


@pytest.mark.parametrize(
    "stream",
    [
        lambda path: iter([X] * 9),
        lambda path: itertools.count(),
        lambda path: (rows for rows in X),
        lambda path: (path / "rows").open("w+"),
        lambda path: ROWS.as_numpy_iterator(),
    ],
)
def test_who_draws_from_one_stream_draws_in_turn(stream, tmp_path):
    source = stream(tmp_path)
    data = [Batches(count, lambda rows, own=source: rows + next(own)) for count in (3, 2)]
    shared = watched(*data)
    assert "can both draw from one" in shared.reason.sentence
    getattr(source, "close", lambda: None)()


def test_data_and_what_logs_are_shared_without_harm():
    logger, lock, names = logging.getLogger("rows"), threading.Lock(), ("a", "b")

    class Reads(keras.utils.PyDataset):
        def __init__(self, rows, options):
            super().__init__()
            self.rows, self.options = rows, options

        def __len__(self):
            return 2

        def __getitem__(self, index):
            with lock:
                logger.debug("batch %d of %s", index, names)
                print(end="")
            return self.rows[:16] * self.options["scale"], Y[:16]

    options = {"scale": 2.0}
    validation = Reads(X, options)
    shared = watched(Reads(X, options), validation)
    assert shared.reason is None
    shared.begin()
    validation[1]
    assert not shared.end()


@pytest.mark.parametrize(
    ("training", "validation"), [(np.random, PRIVATE), (PRIVATE, np.random), (np.random, None)]
)
def test_generators_apart_are_not_missed(training, validation):
    data = [Batches(3, drawn(g) if g is not None else lambda rows: rows) for g in (training, validation)]
    shared = watched(*data)
    shared.begin()
    if validation is not np.random:
        data[1][0]
    assert not shared.end()


def test_arrays_and_pipelines_without_python_are_not_watched():
    for data in ((X, Y), ROWS.batch(16), (ROWS.batch(16),), X, {"a": X}, Arrays):
        sources = {} if data is Arrays else {"": data}
        assert not SharedState(feed_of(Batches(3)), sources).open
    assert not SharedState(SimpleNamespace(runs_python=False), {"": Batches(2)}).open


def test_python_is_found_in_what_is_given():
    def doubled(rows):
        return rows * 2

    mapped = ROWS.map(lambda x, y: (tf.numpy_function(doubled, [x], tf.float32), y))
    assert calls_python(mapped)
    data = Batches(2)
    assert python_in(data) == python_in((data,)) == [data]
    assert python_in(mapped) == python_in((mapped,)) != []
    assert python_in(None) == python_in([X, Y]) == []


@pytest.mark.parametrize(
    "make",
    [
        kerass,
        in_a_cell,
        *(pytest.param(each, marks=pytest.mark.nightly) for each in (eager, layer, on_an_object)),
    ],
)
def test_the_numbers_are_those_of_keras(make):
    def arguments(_):
        change = make()
        return {"x": Batches(3, change), "validation_data": Batches(2, change)}

    messages = fit_both(arguments).messages
    assert any("[data-shared]" in message for message in messages)


WRITTEN = [in_a_list, in_a_cell, in_a_dict, in_a_queue, on_an_object, on_a_class, on_a_function, in_an_array]
WRITTEN += [in_a_variable, in_a_name, in_slots, *MEMORY]


@pytest.mark.parametrize("make", WRITTEN)
def test_what_code_may_change_later_is_read_in_its_source(make):
    change = make()
    shared = watched(Batches(3, change), Batches(2, change))
    assert "may change something that both use" in shared.reason.sentence


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


def test_a_level_that_first_rises_in_a_later_epoch_gives_the_numbers_of_keras():
    def arguments(_):
        settings = {"level": 0}
        return {"x": Rising(3, settings), "validation_data": Levelled(2, settings), "epochs": 7}

    assert any("may change something" in message for message in fit_both(arguments).messages)


def test_what_only_one_of_both_has_may_be_changed():
    own = Rising(3, {"level": 0}), Levelled(2, {"level": 0})
    assert watched(*own).reason is None


def test_a_library_s_generator_for_everybody_gives_the_numbers_of_keras():
    def arguments(_):
        change = in_a_library()
        return {"x": Batches(3, change), "validation_data": Batches(2, change)}

    assert any("changes something" in message for message in fit_both(arguments).messages)


def test_one_stream_for_both_gives_the_numbers_of_keras():
    def arguments(_):
        stream = iter(np.sin(np.arange(10_000)))
        data = [Batches(count, lambda rows: rows + next(stream)) for count in (3, 2)]
        return {"x": data[0], "validation_data": data[1]}

    assert any("can both draw from one" in message for message in fit_both(arguments).messages)
