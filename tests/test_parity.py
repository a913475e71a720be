"""Contract C2: the numbers are those of `keras.Model.fit`, whatever the workers, the model and the data."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import Trainer, ValidationPolicy
from tests.networks import (
    CLASSES,
    FEATURES,
    ROWS,
    VALIDATION_ROWS,
    Largest,
    arrays,
    crossentropy,
    functional,
    functional_data,
    linear,
    subclassed,
)
from tests.pools import sequential
from tests.validation.counting import counting
from tests.whole_fits import test_replay
from tests.whole_fits.comparing import Rows, assert_as_keras, slices

MANY, FEW = arrays(VALIDATION_ROWS, 1), arrays(40, 1)


def in_lists():
    made = functional()
    inputs, outputs = ([each[name] for name in each] for each in (made.input, made.output))
    model = keras.Model(inputs, outputs)
    model.compile("adam", [crossentropy(), "mse"], metrics=[["accuracy"], ["mae"]])
    return model


def lists(rows, seed):
    return tuple([*part.values()] for part in functional_data(rows, seed))


def mixed_precision():
    policy = keras.dtype_policies.DTypePolicy("mixed_bfloat16")
    return linear(
        lambda: keras.layers.Dense(8, activation="relu", dtype=policy), optimizer="adam", metrics=["accuracy"]
    )


class Gate(keras.layers.Layer):
    """Has a layer that its first call builds."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(6)

    def build(self, shape):
        self.w = self.add_weight(shape=(6,), initializer="ones")

    def call(self, x):
        return self.dense(x) * self.w

    def compute_output_shape(self, shape):
        return (shape[0], 6)


def weights(rows, seed):
    return np.random.default_rng(seed).random(rows).astype("f")


def of(data=None, validation=MANY, **more):
    x, y = arrays() if data is None else data
    return lambda: {"x": x, "y": y, "validation_data": validation, **more}


def in_shares(**more):
    return of(validation=None, **{"batch_size": 32, "validation_split": 0.3, "epochs": 3, **more})


def batches():
    return slices(*arrays()).batch(32)


def by_steps(count):
    return lambda: {
        "x": batches().repeat(),
        "steps_per_epoch": count,
        "epochs": 4,
        "shuffle": False,
        "validation_data": FEW,
    }


# A builder, the number of workers, and what makes the data and other arguments of `fit`.
FITS = {
    "two inputs and outputs in dicts": (
        *(functional, 3),
        of(functional_data(), functional_data(VALIDATION_ROWS, 1)),
    ),
    "two inputs and outputs in lists": (in_lists, 7, of(lists(ROWS, 0), lists(VALIDATION_ROWS, 1))),
    "sample weights, a subclassed model that is not built": (
        *(subclassed, 3),
        of(
            None,
            (*MANY, weights(VALIDATION_ROWS, 3)),
            epochs=3,
            batch_size=50,
            sample_weight=weights(ROWS, 2),
            validation_batch_size=17,
        ),
    ),
    "class weights": (sequential, 2, of(None, None, class_weight={0: 0.2, 1: 1.0, 2: 3.0, 3: 1.5})),
    "more workers than batches": (sequential, 7, of(None, FEW)),
    "validation in every second epoch": (sequential, 2, of(None, FEW, epochs=5, validation_freq=2)),
    "validation in the epochs of a list": (
        *(sequential, 2),
        of(None, FEW, epochs=5, validation_freq=[1, 4]),
    ),
    "rows in the order of a shuffle": (sequential, 1, in_shares()),
    "batches in the order of a shuffle": (sequential, 1, in_shares(shuffle="batch")),
    "rows in their order": (sequential, 1, in_shares(shuffle=False)),
    "a validation that changes the model": (counting, 3, of(epochs=3)),
    "a metric of unknown state": (lambda: sequential(metrics=[Largest()]), 7, of()),
    "a layer that builds one in its first call": (lambda: linear(Gate), 2, of()),
    "mixed precision": (mixed_precision, 2, of()),
    "run_eagerly": (lambda: sequential(run_eagerly=True), 2, of(arrays(70), FEW)),
    # in batches of two sizes, each of which XLA compiles
    "jit_compile": (lambda: linear(jit_compile=True), 2, of(arrays(75), arrays(32, 1))),
    "epochs shorter than the data": (sequential, 2, by_steps(3)),
    "epochs of a pass": (sequential, 2, by_steps(7)),
    "epochs longer than the data": (sequential, 2, by_steps(10)),
    "data that runs out before the epochs do": (
        *(sequential, 2),
        lambda: {"x": batches(), "epochs": 3, "steps_per_epoch": 5, "validation_data": FEW, "shuffle": False},
    ),
    "a shuffled pipeline": (
        *(sequential, 2),
        lambda: {
            "x": slices(*arrays()).shuffle(203, seed=5).batch(32),
            "validation_data": slices(*MANY).batch(20),
            "shuffle": False,
        },
    ),
    "generators": (
        *(sequential, 2),
        # With more steps Keras would lose batches that it has fetched ahead, how many is a matter of luck.
        lambda: {
            "x": test_replay.generator(),
            "steps_per_epoch": 5,
            "validation_data": test_replay.generator(),
            "validation_steps": 2,
            "shuffle": False,
        },
    ),
    "PyDatasets": (
        *(sequential, 2),
        lambda: {"x": test_replay.Reshuffled(), "validation_data": Rows(*MANY, 13), "shuffle": False},
    ),
}


@pytest.mark.by_default(
    *("validation in the epochs of a list", "validation in every second epoch", "rows in their order"),
    *("epochs shorter than the data", "data that runs out before the epochs do"),
    *("a shuffled pipeline", "class weights"),
)
@pytest.mark.filterwarnings("ignore:.*ran out of data")
@pytest.mark.parametrize(("build", "workers", "make"), FITS.values(), ids=FITS)
def test_a_fit_equals_that_of_keras(build, workers, make):
    policy = ValidationPolicy(workers=workers)
    assert_as_keras(lambda trained: trained.fit(**{"epochs": 2, "verbose": 0} | make()), policy, build=build)


@pytest.mark.nightly
def test_initial_epoch_and_fitting_twice():
    def run(trained):
        given = {"shuffle": False, "validation_split": 0.2, "verbose": 0}
        first = trained.fit(*arrays(), epochs=2, **given).history
        return first, trained.fit(*arrays(), epochs=4, initial_epoch=2, **given).epoch

    assert_as_keras(run, build=sequential)


class OwnLogs(keras.Sequential):
    def train_step(self, data):
        logs = super().train_step(data)
        return {"train_loss": logs["loss"], "batch_mean": tf.reduce_mean(data[0])}

    def test_step(self, data):
        super().test_step(data)
        return {"batch_mean": tf.reduce_mean(data[0])}


def of_unknown_length():
    return batches().filter(lambda x, y: True)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:.*ran out of data")
@pytest.mark.parametrize("data", ["arrays", "unknown length", "unknown length, a step a call", "eager"])
def test_custom_train_and_test_steps_with_logs_of_their_own(data):
    def build():
        return linear(kind=OwnLogs, run_eagerly=data == "eager")

    def run(trained):
        # The call that finds the end makes no step.
        x = dict(zip("xy", arrays(), strict=True)) if data == "arrays" else {"x": of_unknown_length()}
        own = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: logs.copy().clear())
        callbacks = [own] if "step" in data else []
        trained.fit(**x, epochs=2, shuffle=False, verbose=0, validation_data=MANY, callbacks=callbacks)

    assert_as_keras(run, ValidationPolicy(workers=3), build=build)


@pytest.mark.nightly
def test_states_of_recurrent_layers_go_through_training_and_validation_as_under_keras():
    """They belong to no list of the model's variables; a validation begins with those of the training."""

    def build():
        keras.utils.set_random_seed(3)
        layers = [keras.Input(batch_shape=(16, FEATURES, 1)), keras.layers.GRU(4, stateful=True)]
        model = keras.Sequential([*layers, keras.layers.Dense(CLASSES)])
        model.compile(keras.optimizers.SGD(0.1), crossentropy())
        return model

    def run(trained):
        given = {"validation_data": arrays(1024, 1), "validation_batch_size": 16, "verbose": 0}
        trained.fit(*arrays(96), batch_size=16, epochs=3, **given)
        state = np.array(getattr(trained, "model", trained).layers[0].states[0])
        assert np.abs(state).max() > 0.01
        return state

    assert_as_keras(run, ValidationPolicy(), build=build)


def from_a_generator():
    x, y = arrays()
    return ((x[first : first + 32], y[first : first + 32]) for first in range(0, len(x), 32))


class FunctionSteps(keras.Sequential):
    """Counts its steps in a float, whatever the batch is, and its rows, in a function that the step calls."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.steps = self.add_weight(name="steps", trainable=False, initializer="ones")
        self.rows = self.add_weight(name="rows", trainable=False, initializer="zeros")

    @tf.function
    def train_step(self, data):
        self.steps.assign(self.steps * 1.5)
        self.rows.assign_add(tf.cast(tf.shape(data[0])[0], "float32"))
        return super().train_step(data)


# What a step changes whatever its batch is: Keras before 3.16 does that once more where it finds no batch.
WITHOUT_BATCH = {
    "counted steps and seeds": {},
    "a product of Nadam's": {"optimizer": lambda: keras.optimizers.Nadam(0.01)},
    "decayed weights": {"optimizer": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1)},
    "a step that is a function": {"kind": FunctionSteps},
    "a generator": {"data": from_a_generator, "arguments": {"epochs": 1}},
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
    def build():
        optimizer = case.get("optimizer", lambda: keras.optimizers.Adam(0.01))()
        given = {
            "kind": case.get("kind", keras.Sequential),
            "optimizer": optimizer,
            **case.get("compiled", {}),
        }
        return linear(lambda: keras.layers.Dropout(0.3), **given)

    def run(trained):
        callbacks = [case["callback"]()] if "callback" in case else []
        given = {"epochs": 3, "verbose": 0, "validation_data": MANY, **case.get("arguments", {})}
        trained.fit(case.get("data", of_unknown_length)(), callbacks=callbacks, **given)

    assert_as_keras(run, ValidationPolicy(), build=build)


def test_evaluate_of_a_generator_begins_with_its_first_batch():
    def numbered():
        for i in itertools.count():
            yield np.full((4, 12), i, "float32"), np.zeros(4, "int64")

    model = sequential()
    expected = model.evaluate(numbered(), steps=3, verbose=0)
    assert Trainer(model).evaluate(numbered(), steps=3, verbose=0) == pytest.approx(expected)
