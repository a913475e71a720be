"""Contract C2 over the kinds of data: pipelines, generators and datasets of rows give Keras's numbers."""

from __future__ import annotations

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import Trainer, ValidationPolicy
from tests.networks import (
    CLASSES,
    FEATURES,
    VALIDATION_ROWS,
    arrays,
    assert_same_history,
    assert_same_weights,
    crossentropy,
)
from tests.pools import sequential
from tests.test_parity import fit_both


@pytest.mark.by_default("3", "7")
@pytest.mark.parametrize("steps_per_epoch", [3, 7, 10])
def test_steps_per_epoch_goes_on_where_the_last_epoch_stopped(steps_per_epoch):
    x, y = arrays()
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(32).repeat()
    fit_both(
        sequential,
        2,
        dataset,
        shuffle=False,
        epochs=4,
        steps_per_epoch=steps_per_epoch,
        validation_data=arrays(40, 1),
    )


@pytest.mark.filterwarnings("ignore:.*ran out of data")
def test_data_that_runs_out_before_the_epochs_do():
    dataset = tf.data.Dataset.from_tensor_slices(arrays()).batch(32)
    fit_both(
        sequential, 2, dataset, shuffle=False, epochs=3, steps_per_epoch=5, validation_data=arrays(40, 1)
    )


def of_unknown_length():
    return tf.data.Dataset.from_tensor_slices(arrays()).filter(lambda x, y: True).batch(32)


def from_a_generator():
    x, y = arrays()
    return ((x[first : first + 32], y[first : first + 32]) for first in range(0, len(x), 32))


class Steps(keras.Sequential):
    """Counts its steps in a float, whatever the batch is, and its rows."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.steps = self.add_weight(name="steps", trainable=False, initializer="ones")
        self.rows = self.add_weight(name="rows", trainable=False, initializer="zeros")

    def train_step(self, data):
        self.steps.assign(self.steps * 1.5)
        self.rows.assign_add(tf.cast(tf.shape(data[0])[0], "float32"))
        return super().train_step(data)


class FunctionSteps(Steps):
    """The same, as a function that the step calls."""

    @tf.function
    def train_step(self, data):
        return super().train_step(data)


class FunctionCall(keras.Sequential):
    """Draws its dropout in a function that the step calls, and trains through it."""

    @tf.function
    def call(self, inputs, training=False, mask=None):
        return super().call(inputs, training=training)


# What a step changes whatever its batch is: Keras before 3.16 does that once more where it finds no batch.
WITHOUT_BATCH = {
    "counted steps and seeds": {},
    "a product of Nadam's": {"optimizer": lambda: keras.optimizers.Nadam(0.01)},
    "decayed weights": {"optimizer": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1)},
    "a step of the user's": {"kind": Steps},
    "a step that is a function": {"kind": FunctionSteps},
    "a call that is a function": {"kind": FunctionCall},
    "a step and a call in it with XLA": {"kind": FunctionSteps, "compiled": {"jit_compile": True}},
    "a generator": {"data": from_a_generator, "epochs": 1},
    "steps an epoch": {"arguments": {"steps_per_epoch": 5}},
    "groups of steps": {"compiled": {"steps_per_execution": 3}},
    "XLA": {"compiled": {"jit_compile": True}},
    "eager": {"compiled": {"run_eagerly": True}},
    "a rollback": {"callback": lambda: keras.callbacks.ReduceLROnPlateau("val_loss", 0.1, 0, min_delta=9)},
}


@pytest.mark.by_default("decayed weights", "a step that is a function")
@pytest.mark.filterwarnings("ignore:.*ran out of data")
@pytest.mark.parametrize("case", WITHOUT_BATCH.values(), ids=list(WITHOUT_BATCH))
def test_what_no_batch_decides_is_done_as_often_as_by_keras(case):
    def run(trained_by):
        keras.utils.set_random_seed(1)
        layers = [keras.Input((FEATURES,)), keras.layers.Dropout(0.3), keras.layers.Dense(CLASSES)]
        model = case.get("kind", keras.Sequential)(layers)
        optimizer = case.get("optimizer", lambda: keras.optimizers.Adam(0.01))()
        model.compile(optimizer, crossentropy(), **case.get("compiled", {}))
        callbacks = [case["callback"]()] if "callback" in case else []
        arguments = dict(epochs=case.get("epochs", 3), callbacks=callbacks, verbose=0)
        arguments |= {"validation_data": arrays(VALIDATION_ROWS, 1), **case.get("arguments", {})}
        history = trained_by(model).fit(case.get("data", of_unknown_length)(), **arguments)
        return history.history, model

    (history, model), (expected, other) = run(Trainer), run(lambda model: model)
    assert_same_history(history, expected)
    assert_same_weights(model, other)
    assert int(model.optimizer.iterations) == int(other.optimizer.iterations)
    for ours, theirs in zip(model.variables, other.variables, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, err_msg=ours.path)


class Rows(keras.utils.PyDataset):
    """Batches whose order changes with each epoch."""

    def __init__(self, rows, seed):
        super().__init__()
        self.x, self.y = arrays(rows, seed)
        self.epochs_ended = 0

    def __len__(self):
        return -(-len(self.x) // 32)

    def __getitem__(self, index):
        part = slice(index * 32, index * 32 + 32)
        return np.roll(self.x, self.epochs_ended, axis=0)[part], np.roll(self.y, self.epochs_ended)[part]

    def on_epoch_end(self):
        self.epochs_ended += 1


def reshuffled():
    data = tf.data.Dataset.from_tensor_slices(arrays()).shuffle(203, seed=5).batch(32)
    validation = tf.data.Dataset.from_tensor_slices(arrays(VALIDATION_ROWS, 1)).batch(20)
    return {"x": data, "validation_data": validation}


def generators():
    def batches(seed):
        rng = np.random.default_rng(seed)
        while True:
            yield arrays(16, int(rng.integers(1000)))

    # With more steps Keras would lose batches that it has fetched ahead, how many is a matter of luck.
    steps = {"steps_per_epoch": 5, "validation_steps": 2}
    return {"x": batches(0), "validation_data": batches(1), **steps}


def py_datasets():
    return {"x": Rows(203, 0), "validation_data": Rows(91, 1)}


@pytest.mark.by_default("reshuffled")
@pytest.mark.parametrize("data", [reshuffled, generators, py_datasets])
def test_data_that_changes_from_pass_to_pass(data):
    expected, actual = sequential(), sequential()
    expected.fit(**data(), shuffle=False, epochs=3, verbose=0)
    Trainer(actual).fit(**data(), shuffle=False, epochs=3, verbose=0)
    assert_same_history(actual.history.history, expected.history.history)
    assert_same_weights(actual, expected)


def test_evaluate_of_a_generator_begins_with_its_first_batch():
    def batches():
        for i in itertools.count():
            yield np.full((4, 12), i, "float32"), np.zeros(4, "int64")

    model = sequential()
    expected = model.evaluate(batches(), steps=3, verbose=0)
    assert Trainer(model).evaluate(batches(), steps=3, verbose=0) == pytest.approx(expected)


def test_a_generator_for_validation_is_not_drawn_for_epochs_that_are_rolled_back():
    """Validation data that cannot be rewound has to be validated in step."""

    def batches():
        for seed in itertools.count():
            yield arrays(16, seed)

    class Slower(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 1:
                self.model.optimizer.learning_rate = 1e-3

    histories = []
    for lag in (0, 2):
        model = sequential()
        run = Trainer(model, validation=ValidationPolicy(max_lag=lag, overlap="always")).fit
        data = tf.data.Dataset.from_tensor_slices(arrays()).batch(8)
        arguments = {"validation_data": batches(), "validation_steps": 2, "shuffle": False, "verbose": 0}
        run(data, epochs=5, callbacks=[Slower()], **arguments)
        histories.append(model.history.history)
    assert_same_history(histories[1], histories[0])
