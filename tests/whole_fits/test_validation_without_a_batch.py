"""Validation data without a batch, in every pass or in some: the training goes on, without `val_` values."""

from __future__ import annotations

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import Trainer, ValidationPolicy, ValidationSet
from tests.networks import CLASSES, FEATURES, arrays, assert_same_history, assert_same_weights, crossentropy
from tests.pools import pooled
from tests.seeds import set_random_seed

X, Y = arrays(48)
ROWS = tf.data.Dataset.from_tensor_slices(arrays(5, 1))
SPEC = (tf.TensorSpec([None, FEATURES], X.dtype), tf.TensorSpec([None], Y.dtype))
POLICIES = [
    ValidationPolicy(max_lag=0),
    ValidationPolicy(max_lag=1, overlap="always", workers=3),
    ValidationPolicy(max_lag=2, overlap="always", workers=3, keep_bytes=0),
]


@pooled
def network():
    set_random_seed(7)
    model = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(CLASSES)])
    model.compile("sgd", crossentropy(), metrics=["accuracy"])
    return model


@pooled
def eager():
    model = network()
    model.compile("sgd", crossentropy(), metrics=["accuracy"], run_eagerly=True)
    return model


@pooled
def doubling():
    class Doubling(keras.Sequential):
        def test_step(self, data):
            logs = super().test_step(data)
            return {**logs, "twice": 2 * logs["loss"]}

    set_random_seed(7)
    model = Doubling([keras.Input((FEATURES,)), keras.layers.Dense(CLASSES)])
    model.compile("sgd", crossentropy())
    return model


def sometimes(empty):
    """Returns a dataset of which some passes have two batches and the others none."""
    passes = []

    def batches():
        passes.append(len(passes))
        if not empty(passes[-1]):
            yield from ((X[first : first + 8], Y[first : first + 8]) for first in (0, 8))

    return tf.data.Dataset.from_generator(batches, output_signature=SPEC)


DATA = {
    "too small": lambda: ROWS.batch(8, drop_remainder=True),
    "none taken": lambda: ROWS.batch(2).take(0),
    "no match": lambda: ROWS.filter(lambda x, y: False).batch(2),
    "none of shuffled": lambda: ROWS.shuffle(5).filter(lambda x, y: False).batch(2),
    "later none": lambda: sometimes(lambda number: number % 2 == 1),
    "first none": lambda: sometimes(lambda number: number == 0),
}


class Tells(keras.callbacks.Callback):
    """Acts nowhere, and tells what it is told."""

    def __init__(self):
        super().__init__()
        self.told = []

    def on_test_begin(self, logs=None):
        self.told.append("begin")

    def on_test_end(self, logs=None):
        self.told.append(sorted(logs))

    def on_epoch_end(self, epoch, logs=None):
        self.told.append(sorted(logs))


class TellsOfBatches(Tells):
    def on_test_batch_begin(self, batch, logs=None):
        self.told.append(batch)


def warned(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = call()
    texts = [str(each.message) for each in caught]
    return result, any("ran out" in text for text in texts), {text for text in texts if "stopping" in text}


def trained(data, policy, build, callbacks, **arguments):
    model = build()
    fit = model.fit if policy is None else Trainer(model, validation=policy).fit
    asked = dict(batch_size=8, epochs=4, shuffle=False, verbose=0, callbacks=callbacks) | arguments
    history, *told = warned(lambda: fit(X, Y, validation_data=data(), **asked))
    return model, history.history, told


def assert_as_keras(data, policies=POLICIES, build=network, callbacks=list, **arguments):
    listed = callbacks()
    expected, history, told = trained(data, None, build, listed, **arguments)
    for policy in policies:
        ours = callbacks()
        model, found, told_by_ours = trained(data, policy, build, ours, **arguments)
        assert_same_history(found, history)
        assert_same_weights(model, expected)
        assert told_by_ours == told
        assert [getattr(each, "told", None) for each in ours] == [getattr(e, "told", None) for e in listed]


@pytest.mark.nightly
@pytest.mark.parametrize("data", DATA.values(), ids=DATA)
# `none taken` is tried by the two tests below.
@pytest.mark.by_default("later none")
def test_the_training_goes_on_as_under_keras(data):
    assert_as_keras(data, callbacks=lambda: [Tells(), keras.callbacks.EarlyStopping(patience=9)])


@pytest.mark.nightly
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("name", ["too small", "no match", "later none"])
@pytest.mark.by_default("later none-1")
def test_so_it_does_where_a_number_of_batches_is_asked_for(name, steps):
    assert_as_keras(DATA[name], POLICIES[1:], validation_steps=steps)


@pytest.mark.nightly
@pytest.mark.by_default("doubling")
@pytest.mark.parametrize("build", [eager, doubling])
def test_so_it_does_where_batches_are_taken_one_by_one(build):
    assert_as_keras(DATA["later none"], POLICIES[1:2], build)


@pytest.mark.by_default("none taken")
@pytest.mark.parametrize("name", ["none taken", "no match"])
def test_a_hook_is_told_of_the_batch_that_did_not_come(name):
    assert_as_keras(DATA[name], POLICIES[1:], callbacks=lambda: [TellsOfBatches()])


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("data", DATA.values(), ids=DATA)
@pytest.mark.by_default("too small-True")
def test_an_evaluation_gives_no_value(data, named):
    found = []
    for ours in (False, True):
        model = network()
        evaluate = Trainer(model).evaluate if ours else model.evaluate
        found.append(warned(lambda evaluate=evaluate: evaluate(data(), verbose=0, return_dict=named))[:2])
    (expected, told), (actual, told_by_ours) = found
    if named:
        assert actual == pytest.approx(expected, rel=1e-5)
    else:
        np.testing.assert_allclose(actual, expected, rtol=1e-5)
    assert told_by_ours == told or expected, "where batches came, only Keras warns of the unforeseen end"


def test_the_metrics_are_left_as_they_are_reset():
    model = network()
    trained(DATA["no match"], POLICIES[1], lambda: model, [])
    assert not any(np.any(variable) for variable in model.metrics_variables)


def test_one_of_several_sets_may_be_without():
    sets = {"none": ValidationSet(data=DATA["no match"]()), "some": (X[:8], Y[:8])}
    _, history, told = trained(lambda: sets, POLICIES[1], network, [])
    assert {name for name in history if "val" in name} == {"val_some_loss", "val_some_accuracy"}
    assert len(history["val_some_loss"]) == 4
    assert told[0], "warned of"


def test_validations_inside_epochs_give_no_value_either():
    trainer = Trainer(network(), validation=ValidationPolicy(every_steps=2, overlap="always"))
    _, told, _ = warned(
        lambda: trainer.fit(X, Y, batch_size=8, verbose=0, validation_data=DATA["later none"]())
    )
    assert [sorted(each.metrics) for each in trainer.step_validations] == [
        ["val_accuracy", "val_loss"],
        [],
        ["val_accuracy", "val_loss"],
    ]
    assert told


@pytest.mark.parametrize("name", ["too small", "no match"])
def test_a_checkpoint_bears_it(name, tmp_path):
    trainer = Trainer(network(), validation=ValidationPolicy())
    for epochs in (1, 2):
        history, *_ = warned(
            lambda epochs=epochs: trainer.fit(
                X, Y, epochs=epochs, verbose=0, validation_data=DATA[name](), resume=tmp_path
            )
        )
    assert history.epoch == [0, 1] or history.epoch == [1]
    assert not any("val" in key for key in history.history)
