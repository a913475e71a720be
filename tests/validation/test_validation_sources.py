"""Validation data is read when Keras reads it: behind the training of the first epoch that is validated."""

import itertools
import random
import tempfile

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import EvaluationFunction, Trainer, ValidationPolicy
from tests.networks import arrays, assert_alike
from tests.pools import sequential
from tests.whole_fits.comparing import assert_as_keras, in_turn

X, Y = arrays(64)
POLICIES = ValidationPolicy(), ValidationPolicy(max_lag=0)
FIT = {"batch_size": 16, "epochs": 3, "verbose": 0}


def hooked(hook, act):
    """Returns a callback that calls a function with the number of calls so far, in one hook."""
    calls = itertools.count(1)
    return type("Hook", (keras.callbacks.Callback,), {hook: lambda *_, **__: act(next(calls))})()


def seeded(run):
    """Returns a run that begins with seeded generators, and returns what they draw behind it, too."""

    def begun(trained):
        random.seed(3)
        np.random.seed(3)
        found = run(getattr(trained, "model", trained), trained.fit)
        return found, random.random(), np.random.random()

    return begun


def few(kind="float32"):
    """Returns arrays that a hook is to change: in memory or in a file, with labels or with weights last."""
    x, y = arrays(40, 1)
    if kind == "memmap":
        with tempfile.TemporaryFile() as file:
            mapped = np.memmap(file, x.dtype, "w+", shape=x.shape)
        mapped[:] = x
        return mapped, y
    return (x, y, np.ones(40)) if kind == "weights" else (x.astype(kind), y)


def move(data, calls, model):
    data[0][:] = data[0] * 1.5 + 1


def relabel(data, calls, model):
    data[1][:] = (data[1] + calls) % 4
    move(data, calls, model)


def weigh(data, calls, model):
    data[2][:] += 1
    move(data, calls, model)


def trace_anew(data, calls, model):
    move(data, calls, model)
    model.make_train_function(force=True)


CHANGES = {
    "before a batch": ("on_train_batch_begin", few, relabel, {}),
    "before an epoch": ("on_epoch_begin", few, relabel, {}),
    "behind a batch": ("on_train_batch_end", lambda: few("float64"), relabel, {}),
    "in a file": ("on_train_batch_end", lambda: few("memmap"), relabel, {}),
    "weights": ("on_train_batch_end", lambda: few("weights"), weigh, {}),
    "each second epoch": ("on_epoch_end", few, move, {"validation_freq": 2}),
    "late": ("on_epoch_end", few, move, {"validation_freq": [3]}),
    "traced anew": ("on_epoch_end", few, trace_anew, {}),
}


@pytest.mark.parametrize("case", CHANGES)
@pytest.mark.by_default("late")
def test_arrays_that_a_hook_changes_in_place_are_read_when_keras_reads_them(case):
    hook, make, change, options = CHANGES[case]

    def run(model, fit):
        data = make()
        callback = hooked(hook, lambda calls: change(data, calls, model))
        return fit(X, Y, validation_data=data, callbacks=[callback], **FIT, **options).history

    assert_as_keras(seeded(run), *POLICIES)


class Drawing(keras.utils.PyDataset):
    """Draws from the global generators in each batch, and at an epoch's end."""

    def __init__(self, batches, log):
        super().__init__()
        self.batches, self.log = batches, log

    def __len__(self):
        return self.batches

    def __getitem__(self, index):
        self.log.append(index)
        rows = slice(16 * index, 16 * index + 16)
        return X[rows] * np.random.random() + random.random(), Y[rows]

    def on_epoch_end(self):
        self.log.append("end")
        np.random.random()


@pytest.mark.nightly
def test_training_and_validation_that_draw_from_one_random_generator():
    logs = []

    def run(model, fit):
        logs.append([])
        train, validation = Drawing(4, logs[-1]), Drawing(2, logs[-1])
        return fit(train, validation_data=validation, epochs=3, verbose=0).history

    assert_as_keras(seeded(run), *POLICIES)
    assert logs[0] == logs[1] == logs[2]


@pytest.mark.nightly
def test_two_sets_are_each_read_when_they_are_due():
    """Keras knows one set: what the other draws must not be seen in what this one gives."""

    def run(model, fit):
        sets = given = Drawing(2, [])
        if fit != model.fit:
            sets = {"arrays": (X, Y), "drawn": given}
        history = fit(Drawing(4, []), validation_data=sets, epochs=2, verbose=0).history
        own = {name: values for name, values in history.items() if "arrays" not in name}
        return {name.replace("_drawn", ""): values for name, values in own.items()}, model.get_weights()

    for policy in POLICIES:
        expected, actual, _ = in_turn(seeded(run), policy=policy)
        assert_alike(actual, expected)


def made(kind, seen):
    """Returns validation data that Python makes, with labels by what it sees while it makes them."""

    def batches():
        for index in range(2):
            rows = slice(16 * index, 16 * index + 16)
            yield X[rows], (Y[rows] + seen()) % 4

    if kind == "generator":
        return batches()
    if kind == "from_generator":
        spec = (tf.TensorSpec([None, X.shape[1]], X.dtype), tf.TensorSpec([None], Y.dtype))
        made = tf.data.Dataset.from_generator(batches, output_signature=spec)
        return made.apply(tf.data.experimental.assert_cardinality(2))

    class Made(keras.utils.PyDataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            return list(batches())[index]

    return Made()


@pytest.mark.parametrize("kind", ["generator", "from_generator", "pydataset"])
@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.by_default("3-generator")
def test_python_that_sees_what_the_training_has_done(kind, epochs):
    def run(model, fit):
        count = [0]

        def act(calls):
            count[0] = calls

        # A generator has one validation: how many batches Keras then loses is a matter of luck.
        options = {"validation_freq": [epochs], "validation_steps": 2} if kind == "generator" else {}
        arguments = {**FIT, "epochs": epochs}
        data = made(kind, lambda: count[0])
        hook = hooked("on_train_batch_end", act)
        return fit(X, Y, validation_data=data, callbacks=[hook], **options, **arguments).history

    assert_as_keras(seeded(run), *POLICIES)


def test_nothing_is_drawn_where_no_validation_is_due():
    drawn = []
    data = made("pydataset", lambda: drawn.append(1) or 0)
    model = sequential()
    history = Trainer(model).fit(X, Y, validation_data=data, validation_freq=[9], **FIT).history
    assert "val_loss" not in history
    assert not drawn


def test_an_error_of_the_data_comes_when_keras_meets_it():
    class Failing(Drawing):
        def __getitem__(self, index):
            raise KeyError("no such file")

    for trained in (False, True):
        model = sequential()
        fit = Trainer(model).fit if trained else model.fit
        with pytest.raises(KeyError, match="no such file"):
            fit(X, Y, validation_data=Failing(2, []), **FIT)
        assert int(model.optimizer.iterations) == 4


def test_functions_go_on_beside_a_set_that_waits():
    model = sequential()
    functions = {
        "often": EvaluationFunction(lambda m: {"ones": 1.0}, freq=1),
        "odd": EvaluationFunction(lambda m: 1.0, freq=[1, 3]),
        "seldom": EvaluationFunction(lambda m: {"ones": 1.0}),
    }
    trainer = Trainer(model, validation=ValidationPolicy(functions=functions))
    data = made("pydataset", lambda: 0)
    history = trainer.fit(X, Y, validation_data=data, validation_freq=2, **FIT).history
    found = {name: len(values) for name, values in history.items() if name.startswith("val_")}
    values = {"val_loss": 1, "val_accuracy": 1}
    assert found == {"val_often_ones": 3, "val_odd": 2, **values, "val_seldom_ones": 1}
