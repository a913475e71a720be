"""What hooks set in Python before the first validation is in its trace, as Keras traces it then."""

from __future__ import annotations

import contextvars
import functools
import os
import sys
import types
from types import SimpleNamespace

import keras
import pytest

from overlap_train import Trainer, ValidationPolicy
from tests.networks import CLASSES, FEATURES, arrays, assert_same_history, crossentropy
from tests.seeds import set_random_seed

X, Y = arrays(48)
SCALE = 1.0
CHOSEN = VARIABLE = PAIR = None
SETTINGS = types.ModuleType("settings_of_validations")
SETTINGS.__file__ = __file__
State = SimpleNamespace


def set_global(name, value):
    globals()[name] = value


def half(x):
    return 0.5 * x


class Layer(keras.layers.Layer):
    """A layer that computes as a function says: of itself, its input and whether it trains."""

    def __init__(self, held=None, **options):
        super().__init__(**options)
        self.held = held


def in_evaluation(call, held=None):
    def within(self, x, training=False):
        return x if training else call(self, x)

    return type("Own", (Layer,), {"call": within})(held)


def network(*layers, loss=None, metrics=(), kind=keras.Sequential, **options):
    set_random_seed(7)
    head = keras.layers.Dense(CLASSES, **options)
    model = kind([keras.Input((FEATURES,)), *layers, head])
    model.compile("sgd", crossentropy() if loss is None else loss, metrics=list(metrics))
    return model


# Each returns a model, and what a hook does.


def a_global():
    set_global("SCALE", 1.0)
    return network(in_evaluation(lambda self, x: x * SCALE)), lambda: set_global("SCALE", 0.5)


def a_closure():
    scale = 1.0

    def change():
        nonlocal scale
        scale = 0.5

    return network(in_evaluation(lambda self, x: x * scale)), change


def a_dict():
    table = {"scale": 1.0}
    return network(in_evaluation(lambda self, x: x * table["scale"])), lambda: table.update(scale=0.5)


def a_held_object():
    state = State(inner=State(scale=1.0))
    change = functools.partial(setattr, state.inner, "scale", 0.5)
    return network(in_evaluation(lambda self, x: x * self.held.inner.scale, state)), change


class Penalty:
    scale = 0.0

    def __call__(self, weights):
        return self.scale * keras.ops.sum(keras.ops.abs(weights))


def a_class():
    kind = type("Config", (), {"scale": 1.0, "__module__": __name__})
    return network(in_evaluation(lambda self, x: x * kind.scale)), lambda: setattr(kind, "scale", 0.5)


def the_environment():
    os.environ["SCALE_OF_A_TEST"] = "1"
    layer = in_evaluation(lambda self, x: x * float(os.environ["SCALE_OF_A_TEST"]))
    return network(layer), lambda: os.environ.update(SCALE_OF_A_TEST="0.5")


def a_variable_of_a_context():
    variable = contextvars.ContextVar("variable")
    variable.set(1.0)
    return network(in_evaluation(lambda self, x: x * variable.get())), lambda: variable.set(0.5)


def a_lambda_layer():
    table = {"scale": 1.0}
    layer = keras.layers.Lambda(lambda x: x * table["scale"])
    return network(layer), lambda: table.update(scale=0.5)


class Weighted(keras.losses.Loss):
    def __init__(self, state):
        super().__init__()
        self.state = state

    def call(self, y, p):
        return self.state.scale * keras.losses.sparse_categorical_crossentropy(y, p, from_logits=True)


def a_loss_that_holds_an_object():
    state = State(scale=1.0)
    return network(loss=Weighted(state)), lambda: setattr(state, "scale", 0.5)


class Counted(keras.metrics.Mean):
    def update_state(self, y, p, sample_weight=None):
        super().update_state(p * SCALE)


def a_metric():
    set_global("SCALE", 1.0)
    return network(metrics=[Counted(name="counted")]), lambda: set_global("SCALE", 0.5)


class OwnStep(keras.Sequential):
    def test_step(self, data):
        x, y = data
        p = self(x, training=False) * SCALE
        return {"loss": self.compute_loss(x, y, p), "seen": keras.ops.mean(p)}


def a_test_step():
    set_global("SCALE", 1.0)
    return network(kind=OwnStep), lambda: set_global("SCALE", 0.5)


class Computes(keras.Sequential):
    table = None

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        loss = super().compute_loss(x, y, y_pred, sample_weight)
        return loss if training else self.table["scale"] * loss


def a_loss_of_the_model():
    model = network(kind=Computes)
    table = {"scale": 1.0}
    Computes.table = table
    return model, lambda: table.update(scale=0.5)


def keras_s_epsilon():
    keras.config.set_epsilon(1e-7)
    layer = in_evaluation(lambda self, x: x + keras.config.epsilon())
    return network(layer), lambda: keras.config.set_epsilon(0.1)


class Described:
    """A setting that keeps its value elsewhere."""

    def __init__(self):
        self.values = {}

    def __get__(self, owner, kind):
        return self.values.get(id(owner), 1.0)

    def __set__(self, owner, value):
        self.values[id(owner)] = value


class HasDescribed:
    scale = Described()


def a_descriptor():
    state = HasDescribed()
    return network(in_evaluation(lambda self, x: x * state.scale)), lambda: setattr(state, "scale", 0.5)


def a_regularizer_of_an_activity():
    own = Penalty()
    return network(activity_regularizer=own), lambda: setattr(own, "scale", 0.5)


def other_code_of_a_function():
    def scaled(x):
        return x * 1.0

    layer = in_evaluation(lambda self, x: scaled(x))
    return network(layer), lambda: setattr(scaled, "__code__", half.__code__)


PROGRAMS = [value for value in list(globals().values()) if isinstance(value, types.FunctionType)]
PROGRAMS = PROGRAMS[PROGRAMS.index(a_global) :]
HOOKS = ("on_train_begin", "on_epoch_begin", "on_train_batch_begin", "on_train_batch_end", "on_test_begin")
HOOKS += ("on_test_batch_begin",)


@pytest.fixture(autouse=True)
def watch_attributes(monkeypatch):
    monkeypatch.setitem(sys.modules, "settings_of_validations", SETTINGS)
    monkeypatch.setenv("SCALE_OF_A_TEST", "1")
    yield
    keras.config.set_epsilon(1e-7)


def hook_of(name, change):
    """Returns a callback that changes something when a hook is called for the second time, or once."""
    calls = []
    last = 2 if name.startswith("on_train_batch") else 1

    def hook(self, *arguments, **logs):
        calls.append(name)
        if len(calls) == last:
            change()

    return type("Sets", (keras.callbacks.Callback,), {name: hook})()


def fitted(program, hook, trainer=Trainer, **arguments):
    """Returns the histories of Keras and of a trainer."""
    histories = []
    for ours in (False, True):
        model, change = program()
        given = {"validation_data": (X, Y), "callbacks": [hook_of(hook, change)], "verbose": 0}
        given |= {"epochs": 2, "shuffle": False, "batch_size": 16} | arguments
        if ours:
            one = trainer(model, validation=ValidationPolicy(overlap="always"))
            histories.append(one.fit(X, Y, **given).history)
        else:
            histories.append(model.fit(X, Y, **given).history)
    return histories


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.by_default("a_test_step")
def test_what_a_hook_of_a_batch_sets_is_seen(program):
    expected, actual = fitted(program, "on_train_batch_end")
    assert_same_history(actual, expected)


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.by_default("on_train_begin")
def test_whichever_hook_sets_it(hook):
    expected, actual = fitted(a_dict, hook)
    assert_same_history(actual, expected)


def test_what_an_earlier_epoch_sets_is_seen_by_a_later_first_validation():
    expected, actual = fitted(a_held_object, "on_epoch_end", validation_freq=2, epochs=4)
    assert_same_history(actual, expected)


def test_what_is_set_after_the_first_validation_is_not_seen():
    expected, actual = fitted(a_closure, "on_epoch_end", epochs=3)
    assert_same_history(actual, expected)


class Scaled(Trainer):
    def validation_step(self, batch):
        logs = dict(super().validation_step(batch))
        return {**logs, "scaled": self.table["scale"] * keras.ops.mean(batch[0])}


def test_what_a_step_of_the_trainer_s_reads():
    table = {"scale": 1.0}
    Scaled.table = table
    model = network()
    hook = hook_of("on_train_batch_end", lambda: table.update(scale=0.5))
    one = Scaled(model, validation=ValidationPolicy(overlap="always"))
    history = one.fit(
        X, Y, validation_data=(X, Y), callbacks=[hook], epochs=2, shuffle=False, verbose=0, batch_size=16
    ).history
    assert history["val_scaled"] == pytest.approx([0.5 * X[-16:].mean()] * 2, rel=1e-4)


@pytest.mark.parametrize("program", [a_global, a_dict, a_loss_that_holds_an_object])
@pytest.mark.by_default("a_global")
def test_what_on_test_begin_sets_is_seen_by_the_first_evaluation(program):
    logs = []
    for ours in (False, True):
        model, change = program()
        hook = hook_of("on_test_begin", change)
        evaluated = Trainer(model).evaluate if ours else model.evaluate
        logs.append(evaluated(X, Y, verbose=0, callbacks=[hook], return_dict=True))
    assert logs[1] == pytest.approx(logs[0], rel=1e-5)


class CompilesAgain(keras.callbacks.Callback):
    """Has the model traced again in its second epoch, and sets something before that epoch is validated."""

    def __init__(self, change):
        super().__init__()
        self.change, self.compiled = change, False

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 0:
            self.model.compile("sgd", crossentropy())
            self.model.make_train_function()
            self.compiled = True

    def on_train_batch_end(self, batch, logs=None):
        if self.compiled:
            self.change()


@pytest.mark.nightly
def test_what_is_set_after_the_model_was_compiled_again_is_seen():
    histories = []
    for ours in (False, True):
        model, change = a_dict()
        fit = Trainer(model, validation=ValidationPolicy(overlap="always")).fit if ours else model.fit
        given = {"validation_data": (X, Y), "callbacks": [CompilesAgain(change)], "verbose": 0}
        histories.append(fit(X, Y, epochs=3, shuffle=False, batch_size=16, **given).history)
    assert_same_history(histories[1], histories[0])


class ChangesItself(keras.callbacks.Callback):
    """Has the fit built again, since it is called otherwise than before, and then sets something."""

    def __init__(self, change):
        super().__init__()
        self.change = change

    def on_train_begin(self, logs=None):
        self.epochs = 0

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            type(self).on_train_batch_end = lambda self, batch, logs=None: self.change()


def test_what_is_set_after_the_fit_was_built_again_is_seen():
    histories = []
    for ours in (False, True):
        model, change = a_dict()
        kind = type("Own", (ChangesItself,), {})
        fit = Trainer(model, validation=ValidationPolicy(overlap="always")).fit if ours else model.fit
        given = {"validation_data": (X, Y), "callbacks": [kind(change)], "verbose": 0, "validation_freq": 2}
        histories.append(fit(X, Y, epochs=4, shuffle=False, batch_size=16, **given).history)
    assert_same_history(histories[1], histories[0])
