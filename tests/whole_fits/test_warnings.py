"""The warnings of a `fit` and an `evaluate`: Keras's own, in its words, so that filters for them match."""

from __future__ import annotations

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import Trainer, ValidationPolicy
from tests.networks import arrays
from tests.pools import sequential

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


def trained(how, *data, **arguments):
    model = sequential()
    policy = ValidationPolicy(max_lag=0 if how == "in step" else 1)
    fit = model.fit if how == "keras" else Trainer(model, validation=policy).fit
    return warned(lambda: fit(*data, verbose=0, **arguments))


@pytest.mark.parametrize("shuffle", [True, False, "batch"])
@pytest.mark.parametrize("name", DATA)
@pytest.mark.by_default(each_value=True)
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


@pytest.mark.parametrize("name", too_few())
def test_training_data_that_runs_out_is_told_as_by_keras(name):
    arguments = dict(steps_per_epoch=7, epochs=1, batch_size=8 if name == "arrays" else None, shuffle=False)
    expected = trained("keras", *too_few()[name], **arguments)
    assert len(expected) == 1
    assert trained("ours", *too_few()[name], **arguments) == expected


@pytest.mark.parametrize("how", ["in step", "ahead"])
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


def stopped(model):
    return getattr(model, "stop_evaluating", None)


@pytest.mark.parametrize("how", ["in step", "ahead"])
@pytest.mark.parametrize("listens", [False, True])
@pytest.mark.by_default("False-ahead", "True-in step")
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
