"""Hooks end the batches of a validation by StopIteration or `stop_evaluating`, as in Keras; none an epoch."""

import functools
import signal
import warnings

import keras
import pytest
import tensorflow as tf

from overlap_train import Trainer, ValidationPolicy
from tests.networks import arrays
from tests.pools import pooled, sequential
from tests.whole_fits.comparing import IN_STEP, Rows, assert_as_keras, assert_returns_as_keras, halves, slices
from tests.whole_fits.test_late_hooks import grouped

X, Y = arrays(40)
VALIDATION = arrays(32, 1)
MANY = arrays(130, 1)
AHEAD = ValidationPolicy(max_lag=1)
ALWAYS = ValidationPolicy(max_lag=1, overlap="always")
TRAIN = ("on_train_batch_begin", "on_train_batch_end")
TEST = ("on_test_batch_begin", "on_test_batch_end")


def shuffled(x=X, y=Y, count=40):
    return slices(x, y).shuffle(count, seed=3).batch(8)


DATA = {
    "arrays": lambda: X,
    "dataset": shuffled,
    "unknown": lambda: shuffled().filter(lambda x, y: True),
    "endless": lambda: shuffled().repeat(),
    "PyDataset": lambda: Rows(X, Y),
}


class Ends(keras.callbacks.Callback):
    """Says at one batch that the data has ended, and notes what it is told."""

    def __init__(self, hook, at, error, epochs):
        super().__init__()
        self.calls, self.epoch = [], 0

        def end(number, logs=None):
            self.calls.append((hook, number, sorted(logs)))
            if number == at and self.epoch in epochs:
                raise error

        setattr(self, hook, end)

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_epoch_end(self, epoch, logs=None):
        self.calls.append(("epoch", epoch, sorted(logs)))

    def on_test_end(self, logs=None):
        self.calls.append(("test", None, sorted(logs)))


def assert_ends(
    data, hook, at, error=StopIteration, policies=(AHEAD,), build=sequential, epochs=(0, 1, 2), **more
):
    """Compare a fit whose hook raises at a batch, with what the callback, the data and the user are told."""

    def run(trained):
        callback, x = Ends(hook, at, error, epochs), DATA[data]()
        given = dict(y=Y, batch_size=8) if data == "arrays" else {}
        given |= dict(validation_data=VALIDATION, validation_batch_size=8, callbacks=[callback], **more)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            trained.fit(x, epochs=3, verbose=0, shuffle=False, **given)
        said = [str(each.message) for each in caught if issubclass(each.category, UserWarning)]
        assert len(said) == len(epochs)
        return callback.calls, getattr(x, "told", None), said

    assert_as_keras(run, *policies, build=build)


@pytest.mark.parametrize("at", [0, 1, 3])
@pytest.mark.parametrize("hook", TEST)
@pytest.mark.by_default("on_test_batch_end-0")
def test_what_follows_is_the_end_of_the_validation(hook, at):
    assert_ends("arrays", hook, at, policies=(AHEAD, IN_STEP))


@pytest.mark.parametrize("error", [StopIteration("mine"), tf.errors.OutOfRangeError(None, None, "mine")])
@pytest.mark.parametrize("hook", TRAIN)
@pytest.mark.by_default("on_train_batch_end-error0")
def test_a_training_hook_that_says_that_the_data_has_ended_is_an_error(hook, error):
    callback = Ends(hook, 1, error, (0,))
    with pytest.raises(type(error), match="mine"):
        fit(Trainer(sequential(), validation=ALWAYS), callback, "arrays")


@pytest.mark.by_default("on_test_batch_end")
@pytest.mark.parametrize("hook", TEST)
def test_the_end_that_tensorflow_raises_is_one_too(hook):
    assert_ends("arrays", hook, 1, tf.errors.OutOfRangeError(None, None, "no more"))


@pytest.mark.by_default("on_test_batch_end")
@pytest.mark.parametrize("hook", TEST)
def test_groups_of_steps_end_too(hook):
    assert_ends("arrays", hook, 2 + hook.endswith("end"), build=pooled(grouped))


@pytest.mark.by_default("False-on_test_batch_begin-0", "True-on_test_batch_end-1")
@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize("hook", TEST)
@pytest.mark.parametrize("declared", [False, True])
def test_an_evaluate_is_that_of_its_first_batches(declared, hook, at):
    def run(trained):
        callback = Ends(hook, at, StopIteration, (0,))
        callback.overlap_safe = declared
        given = dict(batch_size=8, verbose=0, callbacks=[callback], return_dict=True)
        trained.evaluate(*VALIDATION, verbose=0)  # which builds the metrics
        with pytest.warns(UserWarning, match="Your input ran out of data"):
            return trained.evaluate(*VALIDATION, **given), callback.calls

    assert_returns_as_keras(run)


@pytest.mark.parametrize("steps", [None, 5, 4])
@pytest.mark.parametrize("at", [8, 10])
@pytest.mark.parametrize("data", ["dataset", "PyDataset"])
@pytest.mark.by_default("dataset-10-None", "PyDataset-10-5")
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_data_is_not_told_of_an_epoch_that_a_hook_ends(data, at, steps):
    def run(trained):
        model, x = getattr(trained, "model", trained), DATA[data]()

        def end(batch, logs):
            model.stop_training = int(model.optimizer.iterations) == at

        callbacks = [keras.callbacks.LambdaCallback(on_train_batch_end=end)]
        for _ in range(2):
            given = dict(validation_data=VALIDATION, callbacks=callbacks, verbose=0, shuffle=False)
            trained.fit(x, epochs=3, steps_per_epoch=steps, **given)
        return getattr(x, "told", None)

    assert_as_keras(run, AHEAD, IN_STEP)


ACTS = {
    "stop": lambda model: setattr(model, "stop_training", True),
    "signal": lambda model: signal.raise_signal(signal.SIGUSR1),
    "slow": lambda model: model.optimizer.learning_rate.assign(0.01),
}


@pytest.mark.parametrize("make", [(lambda: halves(1),), ()], ids=["looks", "alone"])
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.by_default("stop-alone", "signal-looks", "slow-looks")
def test_what_data_or_a_signal_does_to_the_training_is_not_taken_back(act, make):
    def run(trained):
        model, data = getattr(trained, "model", trained), Rows(*VALIDATION)
        acts = functools.partial(ACTS[act], None if act == "signal" else model)
        # Behind the second validation; each is told of a beginning, too.
        data.on_epoch_end = lambda: data.told.append(0) or (len(data.told) == 4 and acts())
        before = signal.signal(signal.SIGUSR1, lambda *_: ACTS["stop"](model))
        try:
            given = dict(callbacks=[each() for each in make], batch_size=8, shuffle=False, verbose=0)
            trained.fit(X, Y, epochs=4, validation_data=data, **given)
        finally:
            signal.signal(signal.SIGUSR1, before)

    assert_as_keras(run, IN_STEP, *([ALWAYS] if make or act != "signal" else []))


# A validation that `on_test_begin` ends has one call of steps, whoever sets `stop_evaluating` and how.


class StopsEvaluating(keras.callbacks.Callback):
    def on_test_begin(self, logs=None):
        setattr(self.model, "_".join(("stop", "evaluating")), True)  # by a name that stands nowhere


class StopsAndHears(StopsEvaluating):
    def __init__(self):
        super().__init__()
        self.heard = []

    def on_test_batch_end(self, batch, logs=None):
        self.heard.append((batch, round(float(logs["loss"]), 4)))


class Declared(StopsEvaluating):
    overlap_safe = True


def generator():
    while True:
        for first in range(0, 32, 8):
            yield tuple(part[first : first + 8] for part in VALIDATION)


# The arguments of `evaluate`; those of a validation have other names.
EVALUATED = {
    "arrays": lambda: dict(x=VALIDATION[0], y=VALIDATION[1], batch_size=8),
    "of many batches": lambda: dict(x=MANY[0], y=MANY[1], batch_size=2),
    "dataset": lambda: dict(x=slices(*VALIDATION).batch(8)),
    "shuffled anew": lambda: dict(x=shuffled(*VALIDATION)),
    "generator": lambda: dict(x=generator(), steps=3),
}


def validated(data):
    given = EVALUATED[data]()
    x, y = given.pop("x"), given.pop("y", None)
    return {"validation_data": x if y is None else (x, y)} | {f"validation_{k}": v for k, v in given.items()}


def fit(trained, callback, data, **more):
    given = {"batch_size": 16, "verbose": 0, "callbacks": [callback], **validated(data), **more}
    return trained.fit(X, Y, epochs=3, **given)


@pytest.mark.parametrize("kind", [StopsEvaluating, StopsAndHears])
@pytest.mark.parametrize("data", EVALUATED)
@pytest.mark.by_default("of many batches-StopsEvaluating")
def test_a_validation_that_is_ended_as_it_begins_is_that_of_keras(data, kind):
    def run(trained):
        callback = kind()
        fit(trained, callback, data)
        return getattr(callback, "heard", None)

    assert_as_keras(run, ALWAYS)


class StopsLater(keras.callbacks.Callback):
    def on_test_batch_end(self, batch, logs=None):
        self.model.stop_evaluating = batch == 1


@pytest.mark.by_default("of many batches-StopsEvaluating", "arrays-StopsEvaluating", "arrays-StopsLater")
@pytest.mark.parametrize("kind", [StopsEvaluating, StopsLater])
@pytest.mark.parametrize("data", EVALUATED)
def test_an_evaluation_that_is_ended_is_that_of_keras_and_warns_of_nothing(data, kind):
    def run(trained):
        return trained.evaluate(**EVALUATED[data](), verbose=0, callbacks=[kind()])

    assert_returns_as_keras(run)


def test_whoever_declares_that_it_only_watches_is_told():
    with pytest.raises(ValueError, match="is made as a whole"):
        fit(Trainer(sequential(), validation=ALWAYS), Declared(), "arrays")
