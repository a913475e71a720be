"""Data whose passes differ in length, or have no batch: Keras fixes how many batches one may have, and when.

A validation without a batch gives no `val_` values, and the training goes on.
"""

import functools
import warnings

import keras
import pytest
import tensorflow as tf

from overlap_train import Trainer, ValidationPolicy, ValidationSet
from tests.networks import FEATURES, arrays, assert_alike, linear
from tests.pools import pooled
from tests.seeds import set_random_seed
from tests.whole_fits.comparing import IN_STEP, Rows, assert_as_keras, halves, in_turn, slices

pytestmark = pytest.mark.filterwarnings("ignore:Your input ran out of data")
X, Y = arrays(80)
VALIDATION = arrays(32, 1)
AFTERWARDS = ValidationPolicy(max_lag=1, overlap="always", workers=3)
DRAWN_ANEW = ValidationPolicy(max_lag=2, overlap="always", workers=3, keep_bytes=0)


# It draws nothing: Keras 3.15 begins one step too many where data ends unforeseen.
network = pooled(functools.partial(linear, metrics=["accuracy"]))


def fit(trained, train=(X, Y), validation=VALIDATION, callbacks=(), **arguments):
    x = dict(zip("xy", train if isinstance(train, tuple) else (train,), strict=False))
    given = {"epochs": 6, "shuffle": False, "verbose": 0, "validation_data": validation, **arguments}
    return trained.fit(**x, callbacks=list(callbacks), **given)


class Changing(Rows):
    """Has another length from one pass to the next, of which it decides when one begins or when one ends.

    Without workers: how many batches Keras's threads draw beyond a pass, and give in the next one, is luck.
    """

    def __init__(self, lengths, *, hook="on_epoch_end"):
        super().__init__(X, Y)
        self.lengths, self.passes = lengths, 0
        for each in ("on_epoch_begin", "on_epoch_end"):
            setattr(self, each, lambda each=each: self._hear(each, counts=each == hook))

    def _hear(self, hook, *, counts):
        self.told.append(hook)
        self.passes += counts

    def __len__(self):
        return self.lengths[self.passes % len(self.lengths)]


@pytest.mark.parametrize("hook", ["on_epoch_end", "on_epoch_begin"])
@pytest.mark.parametrize(
    ("lengths", "steps"), [((3, 4), None), ((2, 5, 3), None), ((3, 5, 4), 2), ((3, 5, 4), 4)]
)
@pytest.mark.by_default("lengths3-4-on_epoch_end")
def test_a_validation_has_as_many_batches_as_were_there_when_it_was_rewound(lengths, steps, hook):
    """Steps that are asked for do not lengthen it."""

    def run(trained):
        data = Changing(lengths, hook=hook)
        fit(trained, validation=data, validation_steps=steps)
        return data.told

    assert_as_keras(run, build=network)


@pytest.mark.parametrize("steps", [None, 2, 5])
@pytest.mark.parametrize("hook", ["on_epoch_end", "on_epoch_begin"])
@pytest.mark.parametrize("lengths", [(3, 4), (5, 2, 3)])
@pytest.mark.by_default("lengths0-on_epoch_begin-None")
def test_training_data_keeps_the_length_that_it_had_when_the_fit_began(lengths, hook, steps):
    def run(trained):
        data = Changing(lengths, hook=hook)
        fit(trained, data, steps_per_epoch=steps)
        return data.told

    assert_as_keras(run, build=network)


@pytest.mark.by_default("True")
@pytest.mark.parametrize("eagerly", [False, True])
def test_evaluate_asks_for_the_length_each_time(eagerly):
    def run(trained):
        data = Changing((3, 4, 5))
        return [trained.evaluate(data, verbose=0, return_dict=True) for _ in range(3)]

    expected, actual, _ = in_turn(run, lambda: network(run_eagerly=eagerly))
    assert_alike(actual, expected)


def until(largest, seed=5, size=4):
    """Return rows in an order that changes, each pass of which ends before the first large one."""
    return slices(X, Y).shuffle(80, seed=seed).take_while(lambda x, y: x[0] < largest).batch(size)


DRAWN = {
    "long first": lambda: until(1.6, 0),
    "short first": lambda: until(1.6, 2),
    "other rows": lambda: until(1.2, 1),
}


@pytest.mark.parametrize("steps", [None, 3])
@pytest.mark.parametrize("data", DRAWN)
@pytest.mark.by_default("long first-3")
def test_the_first_pass_of_unknown_length_tells_how_long_the_others_may_be(data, steps):
    make = DRAWN[data]
    lengths = {sum(1 for _ in passes) for passes in [make()] for _ in range(6)}
    assert len(lengths) > 1
    assert_as_keras(lambda trained: fit(trained, make(), steps_per_epoch=steps), build=network)


@pytest.mark.parametrize("steps", [None, 2, 5])
@pytest.mark.by_default("2")
def test_a_training_that_went_back_learns_it_again(steps):
    def run(trained):
        return fit(trained, until(1.6, 2), callbacks=[halves(1, 3)], steps_per_epoch=steps)

    assert_as_keras(run, build=network)


# Passes without a batch.


def never(data=(X, Y)):
    return slices(*data).filter(lambda x, y: False).batch(8)


def later():
    """Return data whose passes are empty at first."""
    return until(-0.4, 9, 8)


@pytest.mark.parametrize("validation", [VALIDATION, None])
@pytest.mark.parametrize("make", [never, later])
@pytest.mark.by_default("later-validation0", "never-None")
def test_training_goes_on_behind_a_pass_without_a_batch(make, validation):
    set_random_seed(7)  # as before a fit
    data = later()
    lengths = [sum(1 for _ in data) for _ in range(6)]
    assert not lengths[0], "it begins with an empty pass"
    assert any(lengths), "and has others"
    assert_as_keras(lambda trained: fit(trained, make(), validation), build=network)


def test_a_pass_without_a_batch_is_warned_of():
    with pytest.warns(UserWarning, match="Your input ran out of data"):
        Trainer(network()).fit(never(), epochs=1, verbose=0)


def sometimes(empty):
    """Return a dataset of which some passes have two batches and the others none."""
    passes = []

    def batches():
        passes.append(len(passes))
        if not empty(passes[-1]):
            yield from ((X[first : first + 8], Y[first : first + 8]) for first in (0, 8))

    spec = (tf.TensorSpec([None, FEATURES], X.dtype), tf.TensorSpec([None], Y.dtype))
    return tf.data.Dataset.from_generator(batches, output_signature=spec)


FEW = arrays(5, 1)
WITHOUT = {
    "too small": lambda: slices(*FEW).batch(8, drop_remainder=True),
    "none taken": lambda: slices(*FEW).batch(2).take(0),
    "no match": lambda: never(FEW),
    "none of shuffled": lambda: slices(*FEW).shuffle(5).filter(lambda x, y: False).batch(2),
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
    """Return what a call returns, whether it warned that data ran out, and what of `EarlyStopping`."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = call()
    texts = {str(each.message) for each in caught}
    return result, any("ran out" in text for text in texts), sorted(t for t in texts if "stopping" in t)


def assert_goes_on(data, *policies, kind=Tells, **arguments):
    def run(trained):
        tells, plateau = kind(), keras.callbacks.EarlyStopping(patience=9)
        given = {"callbacks": [tells, plateau], "batch_size": 8, "epochs": 4, **arguments}
        _, *said = warned(lambda: fit(trained, (X[:48], Y[:48]), WITHOUT[data](), **given))
        return tells.told, said

    assert_as_keras(run, *policies, build=network)


@pytest.mark.nightly
@pytest.mark.parametrize("steps", [None, 3])
@pytest.mark.parametrize("data", WITHOUT)
def test_the_training_goes_on_as_under_keras(data, steps):
    assert_goes_on(data, IN_STEP, AFTERWARDS, DRAWN_ANEW, validation_steps=steps)


@pytest.mark.by_default("none taken")
@pytest.mark.parametrize("data", ["none taken", "no match"])
def test_a_hook_is_told_of_the_batch_that_did_not_come(data):
    assert_goes_on(data, AFTERWARDS, DRAWN_ANEW, kind=TellsOfBatches)


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("data", WITHOUT)
@pytest.mark.by_default("too small-True")
def test_an_evaluation_gives_no_value(data, named):
    def run(trained):
        return warned(lambda: trained.evaluate(WITHOUT[data](), verbose=0, return_dict=named))

    (expected, told, _), (actual, told_by_ours, _), _ = in_turn(run, network)
    assert_alike(actual, expected)
    assert told_by_ours == told or expected, "where batches came, only Keras warns of the unforeseen end"


def test_one_of_several_sets_may_be_without():
    sets = {"none": ValidationSet(data=WITHOUT["no match"]()), "some": (X[:8], Y[:8])}
    history, told, _ = warned(lambda: fit(Trainer(network(), validation=AFTERWARDS), validation=sets).history)
    assert {name for name in history if "val" in name} == {"val_some_loss", "val_some_accuracy"}
    assert len(history["val_some_loss"]) == 6
    assert told


def test_validations_inside_epochs_give_no_value_either():
    trainer = Trainer(network(), validation=ValidationPolicy(every_steps=2, overlap="always"))
    data = WITHOUT["later none"]()
    _, told, _ = warned(lambda: fit(trainer, (X[:48], Y[:48]), data, epochs=1, batch_size=8))
    names = ["val_accuracy", "val_loss"]
    assert [sorted(each.metrics) for each in trainer.step_validations] == [names, [], names]
    assert told


@pytest.mark.parametrize("data", ["too small", "no match"])
def test_a_checkpoint_bears_it(data, tmp_path):
    trainer = Trainer(network(), validation=ValidationPolicy())
    for epochs in (1, 2):
        warned(lambda epochs=epochs: fit(trainer, validation=WITHOUT[data](), epochs=epochs, resume=tmp_path))
    assert trainer.model.history.epoch in ([0, 1], [1])
    assert not any("val" in key for key in trainer.model.history.history)
