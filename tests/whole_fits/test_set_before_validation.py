"""What hooks set in Python before the first validation is in its trace, as in Keras, and nothing later."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import Trainer, ValidationPolicy
from tests.networks import CLASSES, arrays, assert_alike, linear
from tests.whole_fits.comparing import assert_returns_as_keras, in_turn

X, Y = arrays(48)
ALWAYS = ValidationPolicy(overlap="always")
ARGUMENTS = dict(validation_data=(X, Y), shuffle=False, batch_size=16, verbose=0)


# Each returns a network whose validation reads the scale of a table.


def a_layer(table):
    class Scales(keras.layers.Layer):
        def call(self, x, training=False):
            return x if training else x * table["scale"]

    return linear(Scales)


def a_test_step(table):
    class OwnStep(keras.Sequential):
        def test_step(self, data):
            x, y = data
            p = self(x, training=False) * table["scale"]
            return {"loss": self.compute_loss(x, y, p), "seen": keras.ops.mean(p)}

    return linear(kind=OwnStep)


HOOKS = ("on_train_begin", "on_epoch_begin", "on_train_batch_begin", "on_train_batch_end", "on_test_begin")
HOOKS += ("on_test_batch_begin",)


@pytest.fixture
def table():
    return {"scale": 1.0}


@pytest.fixture
def change(table):
    return lambda scale: table.update(scale=scale)


def hook_of(name, change, last=None):
    """Return a callback that changes the scale at the first call of a hook, of a batch's at the second."""
    calls, last = [], last or (2 if name.startswith("on_train_batch") else 1)

    def hook(self, *arguments, **logs):
        calls.append(name)
        if len(calls) == last:
            change(0.5)

    return type("Sets", (keras.callbacks.Callback,), {name: hook})()


def assert_traced_as_by_keras(build, change, callback, **arguments):
    def run(trained):
        change(1.0)
        return trained.fit(X, Y, callbacks=[callback(change)], **{**ARGUMENTS, "epochs": 2, **arguments})

    assert_returns_as_keras(run, build, ALWAYS)


@pytest.mark.parametrize(
    ("build", "hook"), [*((a_layer, hook) for hook in HOOKS), (a_test_step, "on_train_batch_end")]
)
@pytest.mark.by_default("a_layer-on_train_begin", "a_test_step-on_train_batch_end")
def test_whichever_hook_sets_it_it_is_seen(build, hook, table, change):
    assert_traced_as_by_keras(lambda: build(table), change, functools.partial(hook_of, hook))


@pytest.mark.parametrize(
    "arguments", [dict(validation_freq=2, epochs=4), dict(epochs=3)], ids=["before", "after"]
)
def test_what_is_set_between_epochs_is_seen_by_a_first_validation_behind_it_only(arguments, table, change):
    end = functools.partial(hook_of, "on_epoch_end")
    assert_traced_as_by_keras(lambda: a_layer(table), change, end, **arguments)


@pytest.mark.parametrize(("hook", "calls"), [("on_test_end", 1), ("on_epoch_end", 1), ("on_epoch_begin", 2)])
def test_what_is_set_behind_the_first_validation_is_not_seen(hook, calls, table, change):
    def made(change):
        callback = hook_of(hook, change, calls)
        type(callback).on_test_begin = lambda self, logs=None: table.setdefault("seen", True)
        return callback

    assert_traced_as_by_keras(lambda: a_layer(table), change, made, epochs=3)


def test_batches_are_prepared_once_where_a_hook_runs_before_the_first_validation(change):
    def prepare(x, y):
        return 2.0 * x, tf.one_hot(tf.cast(y, tf.int32), CLASSES)

    def build():
        model = linear()
        model.compile("sgd", keras.losses.CategoricalCrossentropy(from_logits=True))
        return model

    def run(fit, x, y):
        callback = hook_of("on_test_begin", change)
        return fit(x, y, callbacks=[callback], epochs=3, **{**ARGUMENTS, "validation_data": (x, y)}).history

    prepared = [np.asarray(part) for part in prepare(X, Y)]
    expected = run(build().fit, *prepared)
    assert_alike(run(Trainer(build(), validation=ALWAYS, preprocess=prepare).fit, X, Y), expected)


class Notes(keras.callbacks.Callback):
    def on_test_begin(self, logs=None):
        self.begun = True


@pytest.mark.parametrize("first_acts", [True, False])
def test_what_is_set_by_the_first_evaluation_is_seen_and_nothing_behind_it(first_acts, table, change):
    def run(trained):
        change(1.0)
        callbacks = [hook_of("on_test_begin", change)] if first_acts else []
        first = trained.evaluate(X, Y, verbose=0, callbacks=callbacks)
        change(0.25)
        return first, trained.evaluate(X, Y, verbose=0, callbacks=[] if first_acts else [Notes()])

    first, second = assert_returns_as_keras(run, lambda: a_layer(table))
    assert first == pytest.approx(second, rel=1e-5)


def test_what_a_step_of_the_trainer_s_reads(table, change):
    class Scaled(Trainer):
        def validation_step(self, batch):
            logs = dict(super().validation_step(batch))
            return {**logs, "scaled": table["scale"] * keras.ops.mean(batch[0])}

    hook = hook_of("on_train_batch_end", change)
    history = Scaled(linear(), validation=ALWAYS).fit(X, Y, callbacks=[hook], epochs=2, **ARGUMENTS).history
    assert history["val_scaled"] == pytest.approx([0.5 * X[-16:].mean()] * 2, rel=1e-4)


class Scales(keras.callbacks.Callback):
    """Does nothing but to note something for itself."""

    def on_test_begin(self, logs=None):
        self.scale = 0.5


def test_what_on_test_begin_notes_for_itself_is_seen_by_a_model_that_reads_the_callback():
    callback = Scales()

    def build():
        callback.scale = 1.0
        return a_layer(vars(callback))

    expected, actual, _ = in_turn(lambda it: it.evaluate(X, Y, verbose=0, callbacks=[callback]), build)
    assert actual == pytest.approx(expected, rel=1e-5)

    def fit(trained):
        return trained.fit(X, Y, callbacks=[callback], epochs=2, **ARGUMENTS).history

    expected, actual, _ = in_turn(fit, build, ALWAYS)
    assert_alike(actual, expected)


def test_what_a_hook_of_a_batch_sets_is_seen_in_a_fit_that_may_be_resumed(table, change, tmp_path):
    def run(trained):
        change(1.0)
        given = {**ARGUMENTS, **({"resume": tmp_path} if isinstance(trained, Trainer) else {})}
        hook = hook_of("on_train_batch_end", change)
        return trained.fit(X, Y, callbacks=[hook], epochs=2, **given).history

    expected, actual, _ = in_turn(run, lambda: a_layer(table), ALWAYS)
    assert_alike(actual, expected)


@pytest.mark.parametrize("hook", ["on_test_begin", "on_test_batch_begin"])
@pytest.mark.parametrize("order", ["fF", "eEf", "Fe"])
@pytest.mark.by_default("fF-on_test_begin", "eEf-on_test_batch_begin")
def test_the_trace_of_the_first_call_stays(order, hook):
    """Capitals are calls with a callback."""

    class Flagged(keras.Sequential):
        def test_step(self, data):
            return {"flag": tf.constant(getattr(self, "flag", 1.0))}

    def set_flag(self, *arguments, **logs):
        self.model.flag = 5.0

    def run(trained):
        results = []
        for call in order:
            given = [type("Sets", (keras.callbacks.Callback,), {hook: set_flag})()] if call.isupper() else []
            if call in "Ff":
                results += trained.fit(X, Y, callbacks=given, epochs=2, **ARGUMENTS).history["val_flag"]
            else:
                results.append(trained.evaluate(X, Y, verbose=0, callbacks=given, return_dict=True)["flag"])
        return results

    assert_returns_as_keras(run, lambda: linear(kind=Flagged), ALWAYS)
