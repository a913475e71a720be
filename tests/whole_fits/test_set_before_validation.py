"""What hooks set in Python before the first validation is in its trace, as Keras traces it then."""

from __future__ import annotations

import array
import collections
import contextvars
import dataclasses
import enum
import functools
import os
import sys
import threading
import types
import weakref
from types import SimpleNamespace

import keras
import pytest

from overlap_train import Trainer, ValidationPolicy
from overlap_train._validation.validation_step import TracedWith
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


def third(x):
    return x / 3


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


def a_global_of_a_function_that_is_called():
    set_global("SCALE", 1.0)

    def deeper(x):
        return sum(x * SCALE for _ in range(1))

    return network(in_evaluation(lambda self, x: deeper(x))), lambda: set_global("SCALE", 0.5)


def another_function_of_a_name():
    set_global("CHOSEN", half)
    return network(in_evaluation(lambda self, x: CHOSEN(x))), lambda: set_global("CHOSEN", third)


def a_pair():
    set_global("PAIR", (1.0, 2.0))
    return network(in_evaluation(lambda self, x: x * PAIR[1])), lambda: set_global("PAIR", (1.0, 3.0))


def a_closure():
    scale = 1.0

    def change():
        nonlocal scale
        scale = 0.5

    return network(in_evaluation(lambda self, x: x * scale)), change


def a_dict():
    table = {"scale": 1.0}
    return network(in_evaluation(lambda self, x: x * table["scale"])), lambda: table.update(scale=0.5)


def a_dict_in_a_dict():
    table = {"model": {"scale": [1.0]}}
    changes = functools.partial(table["model"]["scale"].append, 3.0)
    return network(in_evaluation(lambda self, x: x * table["model"]["scale"][-1])), changes


def how_long_a_list_is():
    seen = [1]
    return network(in_evaluation(lambda self, x: x * len(seen))), lambda: seen.append(2)


def what_a_set_holds():
    flags = set()
    call = in_evaluation(lambda self, x: x * 0.5 if "half" in flags else x)
    return network(call), lambda: flags.add("half")


def a_queue():
    last = collections.deque([1.0], maxlen=2)
    return network(in_evaluation(lambda self, x: x * last[-1])), lambda: last.append(0.5)


def an_array():
    layer = in_evaluation(lambda self, x: x * self.held[3])
    layer.held = keras.ops.convert_to_numpy(keras.ops.ones(5))

    def change():
        layer.held = layer.held.copy()
        layer.held[3] = 0.5

    return network(layer), change


def an_array_in_place():
    rows = array.array("d", [1.0, 1.0])
    return network(in_evaluation(lambda self, x: x * rows[1])), lambda: rows.__setitem__(1, 0.5)


def a_held_object():
    state = State(inner=State(scale=1.0))
    change = functools.partial(setattr, state.inner, "scale", 0.5)
    return network(in_evaluation(lambda self, x: x * self.held.inner.scale, state)), change


class Penalty:
    scale = 0.0

    def __call__(self, weights):
        return self.scale * keras.ops.sum(keras.ops.abs(weights))


class Slots:
    __slots__ = ("scale",)

    def __init__(self):
        self.scale = 1.0

    def __call__(self, x):
        return x * self.scale


def an_object_with_slots_that_is_called():
    held = Slots()
    return network(in_evaluation(lambda self, x: self.held(x), held)), lambda: setattr(held, "scale", 0.5)


def a_class():
    kind = type("Config", (), {"scale": 1.0, "__module__": __name__})
    return network(in_evaluation(lambda self, x: x * kind.scale)), lambda: setattr(kind, "scale", 0.5)


def a_default_of_the_class_of_a_layer():
    layer = in_evaluation(lambda self, x: x * self.scale)
    type(layer).scale = 1.0
    return network(layer), lambda: setattr(type(layer), "scale", 0.5)


def a_method_of_a_class():
    layer = in_evaluation(lambda self, x: self.chosen(x))
    type(layer).chosen = lambda self, x: half(x)
    return network(layer), lambda: setattr(type(layer), "chosen", lambda self, x: third(x))


def by_a_text():
    layer = in_evaluation(lambda self, x: x * getattr(self, "late_scale", 1.0))
    return network(layer), lambda: setattr(layer, "late_scale", 0.5)


def a_property():
    state = {"scale": 1.0}
    layer = in_evaluation(lambda self, x: x * self.factor)
    type(layer).factor = property(lambda self: state["scale"])
    return network(layer), lambda: state.update(scale=0.5)


def an_attribute_of_a_function():
    def scaled(x):
        return x * scaled.factor

    scaled.factor = 1.0
    return network(in_evaluation(lambda self, x: scaled(x))), lambda: setattr(scaled, "factor", 0.5)


def a_default_of_a_function():
    def scaled(x, table={"scale": 1.0}):  # noqa: B006
        return x * table["scale"]

    change = functools.partial(scaled.__defaults__[0].update, scale=0.5)
    return network(in_evaluation(lambda self, x: scaled(x))), change


def a_partial():
    table = {"scale": 1.0}
    scaled = functools.partial(lambda x, table: x * table["scale"], table=table)
    return network(in_evaluation(lambda self, x: scaled(x))), lambda: table.update(scale=0.5)


def a_module():
    SETTINGS.scale = 1.0
    return network(in_evaluation(lambda self, x: x * SETTINGS.scale)), lambda: setattr(SETTINGS, "scale", 0.5)


def a_module_that_is_imported_where_it_is_used():
    SETTINGS.scale = 1.0

    def call(self, x):
        import settings_of_validations as settings

        return x * settings.scale

    return network(in_evaluation(call)), lambda: setattr(SETTINGS, "scale", 0.5)


def the_environment():
    os.environ["SCALE_OF_A_TEST"] = "1"
    layer = in_evaluation(lambda self, x: x * float(os.environ["SCALE_OF_A_TEST"]))
    return network(layer), lambda: os.environ.update(SCALE_OF_A_TEST="0.5")


def a_variable_of_a_context():
    variable = contextvars.ContextVar("variable")
    variable.set(1.0)
    return network(in_evaluation(lambda self, x: x * variable.get())), lambda: variable.set(0.5)


def what_is_held_weakly():
    state = Penalty()
    held = weakref.ref(state)
    layer = in_evaluation(lambda self, x: x * held().scale)
    layer.kept = [state]
    return network(layer), lambda: setattr(state, "scale", 0.5)


def an_activation():
    set_global("SCALE", 1.0)
    return network(activation=lambda x: x * SCALE), lambda: set_global("SCALE", 0.5)


def a_regularizer():
    own = Penalty()
    return network(kernel_regularizer=own), lambda: setattr(own, "scale", 0.5)


def a_regularizer_of_keras_s():
    own = keras.regularizers.L2(0.0)
    return network(kernel_regularizer=own), lambda: setattr(own, "l2", 0.5)


def a_lambda_layer():
    table = {"scale": 1.0}
    layer = keras.layers.Lambda(lambda x: x * table["scale"])
    return network(layer), lambda: table.update(scale=0.5)


def a_loss_function():
    set_global("SCALE", 1.0)

    def loss(y, p):
        return SCALE * keras.losses.sparse_categorical_crossentropy(y, p, from_logits=True)

    return network(loss=loss), lambda: set_global("SCALE", 0.5)


class Weighted(keras.losses.Loss):
    def __init__(self, state):
        super().__init__()
        self.state = state

    def call(self, y, p):
        return self.state.scale * keras.losses.sparse_categorical_crossentropy(y, p, from_logits=True)


def a_loss_that_holds_an_object():
    state = State(scale=1.0)
    return network(loss=Weighted(state)), lambda: setattr(state, "scale", 0.5)


def a_metric_function():
    table = {"scale": 1.0}

    def seen(y, p):
        return p * table["scale"]

    return network(metrics=[seen]), lambda: table.update(scale=0.5)


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


def a_loss_set_on_the_model():
    model = network()

    def compute_loss(x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return 0.5 * keras.Model.compute_loss(model, x, y, y_pred, sample_weight)

    return model, lambda: setattr(model, "compute_loss", compute_loss)


def keras_s_epsilon():
    keras.config.set_epsilon(1e-7)
    layer = in_evaluation(lambda self, x: x + keras.config.epsilon())
    return network(layer), lambda: keras.config.set_epsilon(0.1)


class Settings(dict):
    __getattr__ = dict.__getitem__


def an_attribute_that_a_dict_makes_up():
    settings = Settings(scale=1.0)
    return network(in_evaluation(lambda self, x: x * settings.scale)), lambda: settings.update(scale=0.5)


def a_dict_of_the_standard_library():
    table = collections.ChainMap({}, collections.UserDict(scale=1.0))
    return network(in_evaluation(lambda self, x: x * table["scale"])), lambda: table.update(scale=0.5)


def what_is_seen_through_a_proxy():
    table = {"scale": 1.0}
    seen = types.MappingProxyType(table)
    return network(in_evaluation(lambda self, x: x * seen["scale"])), lambda: table.update(scale=0.5)


def of_a_thread():
    local = threading.local()
    local.scale = 1.0
    return network(in_evaluation(lambda self, x: x * local.scale)), lambda: setattr(local, "scale", 0.5)


class Mode(enum.Enum):
    WHOLE = 1
    HALF = 2


def a_member_of_an_enumeration():
    state = State(mode=Mode.WHOLE)
    layer = in_evaluation(lambda self, x: half(x) if state.mode is Mode.HALF else x)
    return network(layer), lambda: setattr(state, "mode", Mode.HALF)


@dataclasses.dataclass(frozen=True)
class Frozen:
    scale: float = 1.0


def a_frozen_object_that_is_replaced():
    state = {"config": Frozen()}
    layer = in_evaluation(lambda self, x: x * state["config"].scale)
    return network(layer), lambda: state.update(config=dataclasses.replace(state["config"], scale=0.5))


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


def a_layer_within_a_layer():
    inner = in_evaluation(lambda self, x: x * self.held["scale"], {"scale": 1.0})
    outer = in_evaluation(lambda self, x: self.blocks[0](x, training=False))
    outer.blocks = [inner]
    return network(outer), lambda: inner.held.update({"scale": 0.5})


def an_array_of_a_layer_of_keras_s():
    layer = keras.layers.Rescaling(keras.ops.convert_to_numpy(keras.ops.ones(FEATURES)))
    return network(layer), lambda: setattr(layer, "scale", 0.5 * layer.scale)


def arguments_of_a_lambda_layer():
    layer = keras.layers.Lambda(lambda x, scale: x * scale, arguments={"scale": 1.0})
    return network(layer), lambda: layer.arguments.update({"scale": 0.5})


def a_regularizer_of_an_activity():
    own = Penalty()
    return network(activity_regularizer=own), lambda: setattr(own, "scale", 0.5)


def a_model_that_a_loss_holds():
    judge = keras.Sequential([keras.Input((CLASSES,)), keras.layers.Rescaling(1.0)])

    def loss(y, p):
        return keras.losses.sparse_categorical_crossentropy(y, judge(p), from_logits=True)

    return network(loss=loss), lambda: setattr(judge.layers[0], "scale", 0.5)


def a_function_in_a_list():
    chosen = [half]
    return network(in_evaluation(lambda self, x: chosen[0](x))), lambda: chosen.__setitem__(0, third)


def a_keyword_default():
    def scaled(x, *, scale=1.0):
        return x * scale

    layer = in_evaluation(lambda self, x: scaled(x))
    return network(layer), lambda: scaled.__kwdefaults__.update(scale=0.5)


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
def as_before(monkeypatch):
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
    """Returns the histories of Keras and of a trainer, and the messages of the trainer."""
    histories, messages = [], []
    for ours in (False, True):
        model, change = program()
        given = {"validation_data": (X, Y), "callbacks": [hook_of(hook, change)], "verbose": 0}
        given |= {"epochs": 2, "shuffle": False, "batch_size": 16} | arguments
        if ours:
            one = trainer(model, validation=ValidationPolicy(overlap="always"))
            histories.append(one.fit(X, Y, **given).history)
            messages = one.messages
        else:
            histories.append(model.fit(X, Y, **given).history)
    return *histories, messages


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
# The next test finds what each of them sets.
@pytest.mark.by_default("a_closure", "a_metric", "the_environment", "a_test_step")
def test_what_a_hook_of_a_batch_sets_is_seen(program):
    expected, actual, messages = fitted(program, "on_train_batch_end")
    assert_same_history(actual, expected)
    assert any("was set before the first validation" in text for text in messages)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_it_is_found_where_the_validation_reads_it(program):
    model, change = program()
    model._symbolic_build(data_batch=(X[:1], Y[:1]))
    traced_with = TracedWith(model, model.test_step)
    assert traced_with.changed() is None
    change()
    assert traced_with.changed() is not None


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.by_default(
    "on_train_begin", "on_epoch_begin", "on_train_batch_begin", "on_test_begin", "on_test_batch_begin"
)
def test_whichever_hook_sets_it(hook):
    expected, actual, _ = fitted(a_dict, hook)
    assert_same_history(actual, expected)


def test_what_an_earlier_epoch_sets_is_seen_by_a_later_first_validation():
    expected, actual, _ = fitted(a_held_object, "on_epoch_end", validation_freq=2, epochs=4)
    assert_same_history(actual, expected)


def test_what_is_set_after_the_first_validation_is_not_seen():
    expected, actual, messages = fitted(a_closure, "on_epoch_end", epochs=3)
    assert_same_history(actual, expected)
    assert not any("was set before" in text for text in messages)


def test_what_nothing_of_the_validation_reads_makes_no_trace():
    def unread():
        table = {"scale": 1.0}
        held = State(scale=1.0)
        layer = in_evaluation(lambda self, x: x, held)
        return network(layer), lambda: (table.update(scale=0.5), setattr(held, "scale", 2.0))

    _, _, messages = fitted(unread, "on_train_batch_end")
    assert not any("was set before" in text for text in messages)


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


@pytest.mark.parametrize("program", [a_global, a_dict, a_class, a_loss_that_holds_an_object])
@pytest.mark.by_default("a_global", "a_loss_that_holds_an_object")
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
