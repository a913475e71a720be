"""A pipeline that writes to variables, as layers that augment do, fetches ahead of what callbacks look at."""

from __future__ import annotations

import functools

import keras
import pytest
import tensorflow as tf

from overlap_train import ExecutionPlan, Trainer, ValidationPolicy
from tests.killing import Killed, Kills
from tests.networks import VALIDATION_ROWS, Outcome, arrays, assert_same_history, assert_same_outcome
from tests.pools import sequential

X, Y = arrays()
VALIDATION = arrays(VALIDATION_ROWS, 1)
AHEAD = ValidationPolicy(max_lag=2, overlap="always")
# Epochs are delivered between two of many calls.
SHORT_CALLS = ExecutionPlan(steps_per_call=1, batch_splits=1, jit=False)


def rows():
    return tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(len(X), seed=3)


def by_layers():
    noise = keras.Sequential([keras.layers.GaussianNoise(0.5, seed=3), keras.layers.Dropout(0.3, seed=4)])
    return rows().batch(4).map(lambda x, y: (noise(x, training=True), y)).prefetch(16), None


def by_a_generator():
    generator = tf.random.Generator.from_seed(5)
    return rows().map(lambda x, y: (x + generator.normal(tf.shape(x)), y)).batch(4).prefetch(16), None


def by_a_count():
    count = tf.Variable(0)

    def grown(x, y):
        return x * tf.cast(1 + count.assign_add(1) % 7, x.dtype), y

    return rows().batch(4).map(grown).prefetch(16), None


def in_a_nested_pipeline():
    noise = keras.layers.GaussianNoise(0.5, seed=3)

    def few(x, y):
        return tf.data.Dataset.from_tensors((noise(x[None], training=True), y[None]))

    known = tf.data.experimental.assert_cardinality(-(-len(X) // 4))
    slices = tf.data.Dataset.from_tensor_slices((X, Y))
    return slices.flat_map(few).unbatch().batch(4).apply(known).prefetch(4), None


def without_an_end():
    noise = keras.layers.GaussianNoise(0.5, seed=3)
    return rows().repeat().batch(4).map(lambda x, y: (noise(x, training=True), y)).prefetch(4), 30


def counted_in_steps():
    return by_a_generator()[0], -(-len(X) // 4)  # each epoch ends with a pass, and begins the next


def by_unusual_variables():
    """One of a type that NumPy lacks, one whose shape is open, and one whose number of axes is, too."""
    small = tf.Variable(tf.zeros((), tf.bfloat16))
    lengthened = tf.Variable([1.0], shape=tf.TensorShape([None]))
    reshaped = tf.Variable([1.0], shape=tf.TensorShape(None))

    def grown(x, y):
        small.assign((small + 1) % 7)
        lengthened.assign(tf.concat([lengthened.read_value(), [1.0]], 0)[-9:])
        reshaped.assign(tf.reshape(lengthened.read_value(), (1, -1)))
        size = tf.size(lengthened.read_value()) + tf.size(reshaped.read_value())
        return x * (1 + tf.cast(small, x.dtype)) / tf.cast(size, x.dtype), y

    return rows().batch(4).map(grown).prefetch(16), None


SOURCES = {
    each.__name__: each
    for each in (
        *(by_layers, by_a_generator, by_a_count, by_unusual_variables, in_a_nested_pipeline),
        *(without_an_end, counted_in_steps),
    )
}


def fitted(fit, source, callbacks, **arguments):
    data, steps = SOURCES[source]()
    fit(data, steps_per_epoch=steps, validation_data=VALIDATION, callbacks=callbacks, verbose=0, **arguments)
    return data, steps


class Looks(keras.callbacks.Callback):
    """Takes the weights of each epoch."""

    def on_epoch_end(self, epoch, logs=None):
        self.weights = self.model.get_weights()


def keeps_the_best():
    return keras.callbacks.EarlyStopping("val_loss", patience=9, restore_best_weights=True)


@functools.cache
def with_keras(source):
    model = sequential()
    fitted(model.fit, source, [keeps_the_best()], epochs=4)
    return Outcome.of(model)


@pytest.mark.nightly
@pytest.mark.parametrize("looks", [keeps_the_best, Looks], ids=["of Keras", "of the user"])
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.by_default("without_an_end-of the user")
def test_callbacks_that_look_at_the_model_leave_alone_what_the_pipeline_draws(source, looks):
    trainer = Trainer(sequential(), validation=AHEAD, execution=SHORT_CALLS)
    fitted(trainer.fit, source, [looks()], epochs=4)
    assert not any("in step with" in message or "back to" in message for message in trainer.messages)
    assert_same_outcome(trainer.model, with_keras(source))


@pytest.mark.nightly
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.by_default("by_layers")
def test_a_checkpoint_holds_what_had_been_drawn_by_its_epoch(source, tmp_path):
    def fit(epoch):
        trainer = Trainer(sequential(), validation=AHEAD, execution=SHORT_CALLS)
        fitted(trainer.fit, source, [keeps_the_best(), Kills(epoch=epoch)], epochs=4, resume=tmp_path)
        return trainer

    with pytest.raises(Killed):
        fit(2)
    trainer = fit(None)
    assert "resumed after epoch 2" in trainer.messages
    assert_same_outcome(trainer.model, with_keras(source))


class Both(keras.Model):
    """Has a layer that draws in the data's pipeline, and perhaps in itself as well."""

    def __init__(self, *, draws):
        super().__init__()
        self.noise, self.dense, self.draws = keras.layers.GaussianNoise(0.5), keras.layers.Dense(4), draws

    def call(self, x, training=False):
        return self.dense(self.noise(x, training=training) if self.draws else x)


@pytest.mark.by_default("False")
@pytest.mark.parametrize("draws", [False, True])
def test_a_layer_that_draws_for_the_data_and_the_model_is_in_step(draws):
    model = Both(draws=draws)
    model.compile("sgd", "mse")
    data = rows().batch(4).map(lambda x, y: (model.noise(x, training=True), x[:, :4]))
    trainer = Trainer(model, validation=AHEAD)
    trainer.fit(data, epochs=1, validation_data=(X, X[:, :4]), verbose=0)
    assert any("writes to variables of the model" in message for message in trainer.messages)


def halving():
    return [
        keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=1, min_delta=10.0),
        keras.callbacks.EarlyStopping("val_loss", patience=3, min_delta=10.0),
    ]


@pytest.mark.nightly
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.by_default("without_an_end")
def test_a_rollback_and_an_early_end_leave_the_pipeline_where_keras_has_it(source):
    found = []
    for ours in (False, True):
        model = sequential()
        trainer = Trainer(model, validation=AHEAD, execution=SHORT_CALLS)
        fit = trainer.fit if ours else model.fit
        data, steps = fitted(fit, source, halving(), epochs=8)
        if ours:
            assert any("a callback set" in message for message in trainer.messages)
        outcome = Outcome.of(model)
        if steps is None:  # of one that goes on Keras has fetched any number ahead when it ends
            fit(data, epochs=1, verbose=0)
        found.append((outcome, Outcome.of(model)))
    (expected, then), (actual, ours_then) = found
    assert_same_history(actual.history, expected.history)
    assert_same_history(ours_then.history, then.history)
