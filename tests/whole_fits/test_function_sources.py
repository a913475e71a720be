"""Pipelines whose functions draw from other datasets, iterators or global generators, as by Keras."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

from overlap_train import ExecutionPlan, Trainer, ValidationPolicy
from tests.networks import VALIDATION_ROWS, Outcome, arrays, assert_same_history, assert_same_outcome
from tests.pools import sequential

X, Y = arrays()
VALIDATION = arrays(VALIDATION_ROWS, 1)
AHEAD = ValidationPolicy(max_lag=2, overlap="always")
SHORT_CALLS = ExecutionPlan(steps_per_call=1, batch_splits=1, jit=False)
POLICIES = {"ahead": AHEAD, "in step": ValidationPolicy(max_lag=0), "by default": ValidationPolicy()}
Dataset = tf.data.Dataset


def slices():
    return Dataset.from_tensor_slices((X, Y))


def validation():
    return Dataset.from_tensor_slices(VALIDATION)


def noisy(dataset, generator=None):
    generator = generator or tf.random.Generator.from_seed(5)
    return dataset.map(lambda x, y: (x + generator.normal(tf.shape(x)), y))


def within(dataset, rows):
    known = tf.data.experimental.assert_cardinality(-(-rows // 4))
    return Dataset.range(1).flat_map(lambda i: dataset).batch(4).apply(known)


def halving():
    return [
        keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=1, min_delta=10.0),
        keras.callbacks.EarlyStopping("val_loss", patience=3, min_delta=10.0),
    ]


class Sets(keras.callbacks.Callback):
    """Sets a variable at the end of each epoch."""

    def __init__(self, variable):
        super().__init__()
        self.variable = variable

    def on_epoch_end(self, epoch, logs=None):
        self.variable.assign_add(1.0)


class Draws(keras.callbacks.Callback):
    """Calls something that draws at the end of each epoch."""

    def __init__(self, draw):
        super().__init__()
        self.draw = draw

    def on_epoch_end(self, epoch, logs=None):
        self.draw()


def a_shuffle():
    # Not ended early: the order that was drawn ahead by then is lost, as of all that draw late.
    return {"x": within(slices().shuffle(len(X), seed=3), len(X)), "callbacks": halving()[:1]}


def a_generator():
    return {"x": within(noisy(slices()), len(X)), "callbacks": halving()}


def a_variable_that_a_callback_sets():
    scale = tf.Variable(1.0)
    data = within(slices().map(lambda x, y: (scale * x, y)), len(X))
    return {"x": data, "callbacks": [Sets(scale)]}


def a_validation_that_shuffles():
    rows = validation().shuffle(VALIDATION_ROWS, seed=1).take(24)
    data = Dataset.range(1).flat_map(lambda i: rows).batch(8)
    return {"x": X, "y": Y, "validation_data": data, "validation_steps": 2}


def a_validation_that_draws():
    return {"x": X, "y": Y, "validation_data": within(noisy(validation()), VALIDATION_ROWS)}


def one_generator_for_both():
    generator = tf.random.Generator.from_seed(5)
    held_out = within(noisy(validation(), generator), VALIDATION_ROWS)
    return {"x": noisy(slices(), generator).batch(4), "validation_data": held_out}


def added(dataset, iterator):
    return dataset.map(lambda x, y: (x + next(iterator), y))


def one_iterator_for_both():
    iterator = iter(Dataset.random(seed=3).map(lambda i: tf.cast(i % 7, X.dtype)))
    return {
        "x": added(slices().batch(4), iterator),
        "validation_data": added(validation().batch(4), iterator),
    }


def an_iterator_and_rollbacks():
    iterator = iter(Dataset.random(seed=3).map(lambda i: tf.cast(i % 7, X.dtype)))
    return {"x": added(slices().batch(4), iterator), "callbacks": halving()}


def an_iterator_that_a_callback_draws_from():
    iterator = iter(Dataset.random(seed=3).map(lambda i: tf.cast(i % 7, X.dtype)))
    return {"x": added(slices().batch(4), iterator), "callbacks": [Draws(lambda: next(iterator))]}


def the_global_generator():
    tf.random.set_global_generator(tf.random.Generator.from_seed(7))
    generator = tf.random.get_global_generator()
    draws = Draws(lambda: tf.random.get_global_generator().normal([3]))
    return {"x": noisy(slices(), generator).batch(4), "callbacks": [draws]}


def the_global_seeds_of_keras():
    data = slices().batch(4).map(lambda x, y: (x + keras.random.normal((x.shape[1],)), y))
    return {"x": data, "callbacks": [Draws(lambda: keras.random.normal((3,)))]}


def a_cache_of_draws():
    return {"x": noisy(slices()).cache().batch(4), "callbacks": halving()}


CASES = {
    each.__name__: each
    for each in (
        *(a_shuffle, a_generator, a_variable_that_a_callback_sets, a_validation_that_shuffles),
        *(a_validation_that_draws, one_generator_for_both, one_iterator_for_both, an_iterator_and_rollbacks),
        *(an_iterator_that_a_callback_draws_from, the_global_generator, the_global_seeds_of_keras),
        a_cache_of_draws,
    )
}


@pytest.mark.nightly
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.by_default("a_validation_that_shuffles-by default")
def test_numbers_are_those_of_keras(case, policy):
    found = []
    for ours in (False, True):
        model = sequential()
        keras.utils.set_random_seed(3)
        arguments = {"validation_data": VALIDATION, "epochs": 5, "verbose": 0, **CASES[case]()}
        trainer = Trainer(model, validation=POLICIES[policy], execution=SHORT_CALLS)
        fit = trainer.fit if ours else model.fit
        first = fit(**arguments).history
        then = fit(**{**arguments, "epochs": 2, "callbacks": []}).history
        found.append((first, then, Outcome.of(model)))
    (first, then, expected), (our_first, our_then, _) = found
    assert_same_history(our_first, first)
    assert_same_history(our_then, then)
    assert_same_outcome(model, expected)


def test_a_plain_dataset_that_is_captured_overlaps():
    inner = slices()
    trainer = Trainer(sequential(), validation=AHEAD, execution=SHORT_CALLS)
    keeps = keras.callbacks.EarlyStopping("val_loss", patience=9, restore_best_weights=True)
    plateau = keras.callbacks.ReduceLROnPlateau("val_loss", patience=9)
    trainer.fit(
        within(inner, len(X)), epochs=3, validation_data=VALIDATION, callbacks=[keeps, plateau], verbose=0
    )
    assert not any("in step with" in message for message in trainer.messages)
