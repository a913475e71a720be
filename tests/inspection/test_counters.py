"""A validation that adds constants to variables, as by drawing seeds, overlaps: that is counted ahead."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import Trainer, ValidationPolicy, ValidationSet
from overlap_train._inspection.counters import counters_of
from overlap_train._inspection.traced import TracedFunction
from tests.networks import CLASSES, assert_same_history, crossentropy
from tests.seeds import set_random_seed
from tests.whole_fits.comparing import assert_as_keras, waits

kl, kc = keras.layers, keras.callbacks
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(72, 5, 3)).astype("float32"), RNG.integers(0, CLASSES, 72)
VALIDATION = RNG.normal(size=(41, 5, 3)).astype("float32"), RNG.integers(0, CLASSES, 41)


def compiled(make, kind=keras.Sequential):
    set_random_seed(5)
    model = kind([keras.Input((5, 3)), make(), kl.Dropout(0.2), kl.Dense(CLASSES)])
    model.compile("adam", crossentropy(), metrics=["accuracy"])
    return model


class Counts(keras.Sequential):
    """Counts the batches of its validations, and weighs the loss by their number."""

    first, step = tf.constant(0, tf.int64), tf.constant(2, tf.int64)

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.seen = tf.Variable(self.first)

    def test_step(self, data):
        self.seen.assign(self.seen + self.step)
        return super().test_step(data)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        return loss * (1.0 + tf.cast(self.seen, tf.float32) / 50.0)


class Draws(keras.Sequential):
    """Draws noise from a generator of its own in its validations, and trains with what comes after."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.generator = keras.random.SeedGenerator(3)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        return loss * keras.random.uniform((), seed=self.generator)


MODELS = {
    "lstm": lambda: compiled(lambda: kl.LSTM(4, dropout=0.3, recurrent_dropout=0.2)),
    "counts": lambda: compiled(kl.Flatten, Counts),
    "draws": lambda: compiled(kl.Flatten, Draws),
}


def compared(build, *, overlaps=True, epochs=5, callbacks=list, **arguments):
    """Trains by Keras and by us, and requires the same history, weights, states of generators and counts."""
    settings = {"batch_size": 16, "epochs": epochs, "verbose": 0, "validation_batch_size": 8}
    settings |= {"validation_data": VALIDATION} | arguments

    def run(trained):
        trained.fit(X, Y, callbacks=callbacks(), **settings)
        model = getattr(trained, "model", trained)
        seeds = [variable.numpy().tolist() for variable in model.variables if "seed" in variable.path]
        return seeds, int(getattr(model, "seen", 0))

    trainer = assert_as_keras(run, ValidationPolicy(overlap="always", workers=3, max_lag=2), build=build)
    assert waits(trainer) is not overlaps, trainer.messages
    return trainer.model


@pytest.mark.nightly
@pytest.mark.parametrize("name", MODELS)
def test_what_a_validation_adds_is_there_when_the_training_goes_on(name):
    model = compared(MODELS[name])
    assert name != "counts" or int(model.seen) == 5 * 6 * 2
    compared(MODELS[name], validation_freq=2)


def dataset():
    return tf.data.Dataset.from_tensor_slices(VALIDATION).batch(8)


CASES = {
    "a stop": {"callbacks": lambda: [kc.EarlyStopping(min_delta=1e9, patience=1)]},
    "a rollback": {
        "callbacks": lambda: [kc.ReduceLROnPlateau("val_loss", patience=0, factor=0.5, min_delta=10.0)]
    },
    "a dataset": {"validation_data": dataset()},
    "steps": {"validation_steps": 3},
}


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:.* conditioned on metric")
@pytest.mark.parametrize("model", ["draws", "lstm"])
@pytest.mark.parametrize("case", CASES)
def test_it_is_so_whatever_ends_or_undoes_an_epoch(case, model):
    compared(MODELS[model], epochs=3, **CASES[case])


class Listens(kc.Callback):
    def on_test_batch_end(self, batch, logs=None):
        self.seen = dict(logs)


def noisy():
    return dataset().map(lambda x, y: (x + 0.0 * tf.random.normal([1, 3]), y))


IN_STEP = {
    "batches are listened to": {"callbacks": lambda: [Listens()]},
    "drawn anew": {"validation_data": noisy()},
    "of unknown length": {"validation_data": dataset().filter(lambda *_: True), "validation_steps": 3},
}


@pytest.mark.parametrize("case", IN_STEP)
@pytest.mark.by_default("batches are listened to")
def test_where_it_cannot_be_counted_the_validation_is_made_in_step(case):
    compared(MODELS["lstm"], overlaps=False, **IN_STEP[case])


def test_counters_wrap_around_and_count_the_epochs_that_are_validated():
    class Small(Counts):
        first, step = tf.constant(250, tf.uint8), tf.constant(90, tf.uint8)

    compared(lambda: compiled(kl.Flatten, Small), epochs=4, validation_freq=2)


def test_of_two_sets_of_which_one_may_be_drawn_anew_each_follows_the_other():
    histories = []
    for streamed in (False, True):
        first = ValidationSet(data=noisy()) if streamed else ValidationSet(data=VALIDATION, batch_size=8)
        sets = {"b": first, "a": ValidationSet(data=VALIDATION, batch_size=8)}
        trainer = Trainer(MODELS["draws"](), validation=ValidationPolicy(overlap="always"))
        histories.append(trainer.fit(X, Y, epochs=3, validation_data=sets, verbose=0).history)
        reason = "the validation changes variables that are no metric"
        assert streamed or any(reason in message for message in trainer.messages)
    assert_same_history(*histories)


VARIABLE, ADDED = tf.Variable([1, 5], dtype=tf.int64), tf.constant([0, 1], tf.int64)
FLOATS = tf.Variable(1.0)


def twice():
    VARIABLE.assign(VARIABLE + ADDED)
    VARIABLE.assign_add([2, 0])


def stale():
    before = VARIABLE.read_value()
    VARIABLE.assign(before + ADDED)
    VARIABLE.assign(before + ADDED)


FUNCTIONS = {
    "twice": (twice, [[2, 1]]),
    "stale": (stale, []),
    "set": (lambda: VARIABLE.assign([0, 0]), []),
    "doubled": (lambda: VARIABLE.assign(VARIABLE * 2), []),
    "by itself": (lambda: VARIABLE.assign_add(VARIABLE), []),
    "at times": (lambda: tf.cond(FLOATS > 0, lambda: VARIABLE.assign_add([1, 1]), lambda: VARIABLE + 0), []),
    "subtracted": (lambda: VARIABLE.assign_sub([1, 0]), []),
    "read": (lambda: VARIABLE + 1, []),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_only_what_surely_adds_constants_is_a_counter(name):
    function, expected = FUNCTIONS[name]

    def traced():
        function()
        return tf.constant(0)

    step = TracedFunction(traced)
    assert [counter.step.tolist() for counter in counters_of(step, step.written)] == expected
