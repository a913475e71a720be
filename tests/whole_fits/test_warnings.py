"""The warnings of a `fit` and an `evaluate`: Keras's own, in its words, so that filters for them match."""

from __future__ import annotations

import inspect
import sys
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.trainers.epoch_iterator import EpochIterator

from overlap_train import Trainer, ValidationPolicy
from overlap_train._keras import data as keras_data
from overlap_train._keras.names import BEFORE_3_16
from tests.networks import arrays, crossentropy
from tests.pools import pooled, sequential

X, Y = arrays(40)
XV, YV = arrays(24, 1)


class Batches(keras.utils.PyDataset):
    def __init__(self, count):
        super().__init__()
        self.count = count

    @property
    def num_batches(self):
        return self.count

    def __getitem__(self, index):
        return X[:8], Y[:8]


def dataset(x=X, y=Y):
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(8)


DATA = {
    "arrays": lambda: (X, Y),
    "dataset": lambda: (dataset(),),
    "endless": lambda: (dataset().repeat(),),
    "generator": lambda: (((X[:8], Y[:8]) for _ in range(20)),),
    "PyDataset": lambda: (Batches(5),),
    "endless PyDataset": lambda: (Batches(None),),
}
ENDLESS = {"endless", "generator", "endless PyDataset"}


def warned(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [(w.category, str(w.message)) for w in caught if issubclass(w.category, UserWarning)]


class Draws(keras.Sequential):
    """Is validated in step, by Keras's own `evaluate`, for what its `test_step` draws."""

    def test_step(self, data):
        tf.random.uniform(())
        return super().test_step(data)


def drawing():
    model = Draws([keras.Input((X.shape[1],)), keras.layers.Dense(4)])
    model.compile("sgd", crossentropy())
    return model


def trained(how, *data, **arguments):
    model = drawing() if how == "in step" else sequential()
    policy = ValidationPolicy(max_lag=0 if how == "at once" else 1)
    fit = model.fit if how == "keras" else Trainer(model, validation=policy).fit
    return warned(lambda: fit(*data, verbose=0, **arguments))


@pytest.mark.parametrize("shuffle", [True, False, "batch"])
@pytest.mark.parametrize("name", DATA)
@pytest.mark.by_default("dataset-True", "endless-True")
def test_shuffle_is_ignored_with_the_warning_of_keras(name, shuffle):
    arguments = dict(shuffle=shuffle, steps_per_epoch=2 if name in ENDLESS else None)
    expected = trained("keras", *DATA[name](), **arguments)
    assert len(expected) == (name not in ("arrays", "PyDataset") and bool(shuffle))
    assert trained("ours", *DATA[name](), **arguments) == expected


def too_few():
    rows = dataset()
    return {
        "arrays": (X, Y),
        "dataset": (rows,),
        "PyDataset": (Batches(5),),
        "of no known size": (rows.filter(lambda x, y: True),),
        "of another size than it says": (rows.apply(tf.data.experimental.assert_cardinality(5)).take(3),),
        "generator": (((X[:8], Y[:8]) for _ in range(5)),),
    }


@pytest.mark.by_default("dataset", "of another size than it says")
@pytest.mark.parametrize("name", too_few())
def test_training_data_that_runs_out_is_told_as_by_keras(name):
    arguments = dict(steps_per_epoch=7, epochs=1, batch_size=8 if name == "arrays" else None, shuffle=False)
    expected = trained("keras", *too_few()[name], **arguments)
    assert len(expected) == 1
    assert trained("ours", *too_few()[name], **arguments) == expected


@pytest.mark.by_default("dataset-ahead", "arrays-ahead")
@pytest.mark.parametrize("how", ["at once", "in step", "ahead"])
@pytest.mark.parametrize("data", ["arrays", "dataset"])
def test_validation_data_that_runs_out_is_told_as_by_keras(data, how):
    arguments = dict(
        validation_data=(XV, YV) if data == "arrays" else dataset(XV, YV),
        validation_steps=9,
        validation_batch_size=8 if data == "arrays" else None,
        epochs=2,
    )
    expected = trained("keras", X, Y, **arguments)
    assert len(expected) == 2
    assert trained(how, X, Y, **arguments) == expected


@pytest.mark.by_default("ahead")
@pytest.mark.parametrize("how", ["at once", "in step", "ahead"])
def test_a_validation_without_a_batch_is_told_each_time_as_by_keras(how):
    nothing = dataset().filter(lambda x, y: False)
    expected = trained("keras", X, Y, epochs=2, validation_data=nothing)
    assert len(expected) == (2 if ENDS else 0)
    assert trained(how, X, Y, epochs=2, validation_data=nothing) == expected


@pytest.mark.parametrize("hook", [None, "on_test_batch_end"])
def test_an_evaluate_of_too_few_batches_is_told_as_by_keras(hook):
    def run(evaluate):
        callbacks = (
            [type("Own", (keras.callbacks.Callback,), {hook: lambda *_, **__: None})()] if hook else []
        )
        return warned(lambda: evaluate(XV, YV, batch_size=8, steps=9, verbose=0, callbacks=callbacks))

    expected = run(sequential().evaluate)
    assert len(expected) == 1
    assert run(Trainer(sequential()).evaluate) == expected


def generator(count=5):
    return ((X[:8], Y[:8]) for _ in range(count))


OF_NO_KNOWN_LENGTH = {
    "filtered": lambda: dataset().filter(lambda x, y: True),
    "filtered and kept": lambda: dataset().filter(lambda x, y: True).cache(),
    "from a generator": lambda: tf.data.Dataset.from_generator(
        generator,
        output_signature=tf.nest.map_structure(lambda a: tf.TensorSpec((8, *a.shape[1:]), a.dtype), (X, Y)),
    ),
    "generator": generator,
}
ENDS = 3 if BEFORE_3_16 else 0  # of which Keras up to 3.15 warns each time


@pytest.mark.nightly
@pytest.mark.by_default("filtered and kept")
@pytest.mark.parametrize("name", OF_NO_KNOWN_LENGTH)
def test_the_end_of_training_data_of_no_known_length_is_told_once(name):
    make = OF_NO_KNOWN_LENGTH[name]
    expected = trained("keras", make(), epochs=3, shuffle=False)
    assert len(expected) == ENDS
    assert trained("ours", make(), epochs=3, shuffle=False) == expected[:1]


@pytest.mark.nightly
@pytest.mark.parametrize("how", ["at once", "in step", "ahead"])
@pytest.mark.parametrize("name", OF_NO_KNOWN_LENGTH)
@pytest.mark.by_default("filtered-at once")
def test_the_end_of_validation_data_of_no_known_length_is_told_once(name, how):
    make = OF_NO_KNOWN_LENGTH[name]
    expected = trained("keras", X, Y, epochs=3, validation_data=make())
    assert len(expected) == ENDS
    assert trained(how, X, Y, epochs=3, validation_data=make()) == expected[:1]
    wanted = warned(lambda: sequential().evaluate(make(), verbose=0))
    assert warned(lambda: Trainer(sequential()).evaluate(make(), verbose=0)) == wanted
    assert len(wanted) == bool(ENDS)


def test_a_generator_that_ends_trains_on_what_keras_looked_at_and_is_told_once():
    class Counts(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.batches = []

        def on_epoch_begin(self, epoch, logs=None):
            self.batches.append(0)

        def on_train_batch_end(self, batch, logs=None):
            self.batches[-1] += 1

    counted = []
    for how in ("keras", "ours"):
        counts = Counts()
        said = trained(how, generator(7), epochs=4, callbacks=[counts], shuffle=False)
        assert len(said) == (bool(ENDS) if how == "ours" else ENDS and 4)
        counted.append(counts.batches)
    assert counted[1] == counted[0] == [7, 2, 2, 2]


IN_GROUPS = {
    "dataset": dataset,
    "PyDataset": lambda: Batches(5),
    "of no known size": lambda: dataset().filter(lambda x, y: True),
}


@pooled
def grouped(group):
    model = keras.Sequential([keras.Input((X.shape[1],)), keras.layers.Dense(4)])
    model.compile("sgd", crossentropy(), steps_per_execution=group)
    return model


def said_in_groups(how, group, steps, data):
    """Returns how often training data, validation data and those of `evaluate` were said to have run out."""
    model = grouped(group=group)
    fit, evaluate = model.fit, model.evaluate
    if how != "keras":
        trainer = Trainer(model)
        fit, evaluate = trainer.fit, trainer.evaluate
    calls = [
        lambda: fit(data(), epochs=2, steps_per_epoch=steps, verbose=0, shuffle=False),
        lambda: fit(X, Y, epochs=2, validation_data=data(), validation_steps=steps, verbose=0),
        lambda: evaluate(data(), steps=steps, verbose=0),
    ]
    return [len(warned(call)) for call in calls]


@pytest.mark.nightly
@pytest.mark.parametrize("group", [2, 3])
@pytest.mark.parametrize("steps", [3, 4, 5, 6, 7])
@pytest.mark.parametrize("name", IN_GROUPS)
@pytest.mark.by_default("dataset-7-3")
def test_a_group_of_steps_that_has_begun_is_not_short_of_data(name, steps, group):
    expected = said_in_groups("keras", group, steps, IN_GROUPS[name])
    assert said_in_groups("ours", group, steps, IN_GROUPS[name]) == expected


OUT_OF_DATA = {
    "training": lambda trainer: trainer.fit(dataset(), epochs=1, steps_per_epoch=9, verbose=0, shuffle=False),
    "validation": lambda trainer: trainer.fit(
        X, Y, epochs=1, validation_data=(XV, YV), validation_steps=9, validation_batch_size=8, verbose=0
    ),
    "evaluate": lambda trainer: trainer.evaluate(XV, YV, batch_size=8, steps=9, verbose=0),
}


@pytest.mark.by_default("evaluate-drawing")
@pytest.mark.parametrize("make", [sequential, drawing])
@pytest.mark.parametrize("name", OUT_OF_DATA)
def test_it_is_told_of_the_users_line(name, make):
    with pytest.warns(UserWarning, match="Your input ran out of data") as caught:
        OUT_OF_DATA[name](Trainer(make()))
    (said,) = caught
    lines, _ = inspect.getsourcelines(sys.modules[__name__])
    assert said.filename == __file__
    assert any(word in lines[said.lineno - 1] for word in ("trainer.fit(", "trainer.evaluate("))


def test_it_is_told_once_of_each_line_unless_asked_otherwise():
    rows, models = dataset(), [sequential() for _ in range(3)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for model in models:
            Trainer(model).fit(rows, epochs=2, steps_per_epoch=9, verbose=0, shuffle=False)
    assert len(caught) == 1


def test_it_is_told_in_the_words_of_keras():
    with pytest.warns(UserWarning, match="Your input") as caught:
        EpochIterator._interrupted_warning(None)
    assert str(caught[0].message) == keras_data._OUT_OF_DATA


def stopped(model):
    return getattr(model, "stop_evaluating", None)


@pytest.mark.nightly
@pytest.mark.parametrize("how", ["at once", "in step", "ahead"])
@pytest.mark.parametrize("listens", [False, True])
@pytest.mark.by_default("False-ahead")
def test_each_validation_sets_stop_evaluating_back(how, listens):
    class Sets(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.seen = []

        def on_epoch_begin(self, epoch, logs=None):
            self.model.stop_evaluating = True

        def on_epoch_end(self, epoch, logs=None):
            self.seen.append(stopped(self.model))

        if listens:

            def on_test_begin(self, logs=None):
                self.seen.append(stopped(self.model))

    def run(how):
        model, callback = sequential(), Sets()
        if hasattr(model, "stop_evaluating"):
            del model.stop_evaluating
        trainer = Trainer(model, validation=ValidationPolicy(max_lag=0 if how == "in step" else 1))
        fit, evaluate = (model.fit, model.evaluate) if how == "keras" else (trainer.fit, trainer.evaluate)
        fit(X, Y, verbose=0)
        seen = [stopped(model)]
        fit(X, Y, verbose=0, epochs=2, validation_data=(XV, YV))
        seen.append(stopped(model))
        fit(X, Y, verbose=0, epochs=3, validation_data=(XV, YV), validation_freq=2, callbacks=[callback])
        seen += [*callback.seen, stopped(model)]
        evaluate(XV, YV, verbose=0)
        return [*seen, stopped(model)]

    assert run(how) == run("keras")


def test_an_evaluate_ends_when_a_callback_says_so():
    class Ends(keras.callbacks.Callback):
        def on_test_batch_end(self, batch, logs=None):
            self.model.stop_evaluating = batch == 1

    def run(evaluate):
        return evaluate(XV, YV, batch_size=4, verbose=0, callbacks=[Ends()])

    np.testing.assert_allclose(run(Trainer(sequential()).evaluate), run(sequential().evaluate), rtol=1e-5)
