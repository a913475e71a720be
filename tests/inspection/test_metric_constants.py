"""Metrics that compute with plain values of Python overlap, and obey at once whoever sets one of these."""

from __future__ import annotations

import dataclasses
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import Trainer, ValidationPolicy
from overlap_train._inspection.metric_code import constants_of
from tests.networks import CLASSES, arrays, assert_same_history, sequential

X, Y = arrays(96)
VALIDATION = arrays(40, 1)
SCALE = 2.0
OTHER = types.ModuleType("settings_of_scales")
OTHER.__file__ = __file__
OTHER.scale = 2.0


@dataclasses.dataclass
class Options:
    scale: float = 2.0

    def doubled(self):
        return self.scale * 2.0


class Shared:
    scale = 2.0


class Scaled(keras.metrics.Metric):
    """Counts rows, and gives them times what is read of Python."""

    def __init__(self):
        super().__init__(name="scaled")
        self.rows = self.add_weight(name="rows", initializer="zeros")
        self.scale, self.scales, self.table = 2.0, [2.0, 3.0], np.ones(2, "float32")
        self.options, self.kind = Options(), "plain"

    def update_state(self, y, p, sample_weight=None):
        self.rows.assign_add(keras.ops.cast(keras.ops.shape(p)[0], "float32"))

    def result(self):
        return self.rows * self._factor()

    def _factor(self):
        return self.scale

    def set(self, value):
        self.scale = value


class FBeta(Scaled):
    """As many are written: per class, with numbers, a list and a reset of its own."""

    def __init__(self, beta=2.0):
        super().__init__()
        self.beta, self.num_classes, self.weights_of = beta, CLASSES, [1.0, 2.0, 3.0, 4.0]
        self.hits, self.real, self.said = (
            self.add_weight(name=name, shape=(CLASSES,), initializer="zeros")
            for name in ("hits", "real", "said")
        )

    def update_state(self, y, p, sample_weight=None):
        real = keras.ops.one_hot(keras.ops.cast(keras.ops.reshape(y, (-1,)), "int32"), self.num_classes)
        said = keras.ops.one_hot(keras.ops.argmax(p, -1), self.num_classes)
        for variable, values in ((self.hits, real * said), (self.real, real), (self.said, said)):
            variable.assign_add(keras.ops.sum(values, 0))

    def result(self):
        precision, recall = self.hits / (self.said + 1e-7), self.hits / (self.real + 1e-7)
        square = self.beta**2
        of_class = (1 + square) * precision * recall / (square * precision + recall + 1e-7)
        weights = keras.ops.convert_to_tensor(self.weights_of)
        return keras.ops.sum(of_class * weights) / keras.ops.sum(weights)

    def reset_state(self):
        for variable in (self.hits, self.real, self.said):
            variable.assign(keras.ops.zeros((self.num_classes,)))

    def set(self, value):
        self.beta, self.weights_of[0] = value, value


def factor(body, setter, **members):
    """Returns a metric that multiplies by what a function reads, and how that is set."""
    return type("Scaled", (Scaled,), {"_factor": body, "set": setter, **members})


def set_global(metric, value):
    global SCALE
    SCALE = value


def set_option(metric, value):
    metric.options.scale = value


HELD = {
    "attribute": Scaled,
    "several": FBeta,
    "item": factor(
        lambda self: self.scales[0] + self.table[1], lambda self, v: self.scales.__setitem__(0, v)
    ),
    "array": factor(lambda self: self.table[0], lambda self, v: self.table.__setitem__(0, v)),
    "text": factor(
        lambda self: 3.0 if self.kind == "plain" else 1.0, lambda self, v: setattr(self, "kind", str(v))
    ),
    "class": factor(lambda self: Shared.scale, lambda self, v: setattr(Shared, "scale", v)),
    "module": factor(lambda self: OTHER.scale, lambda self, v: setattr(OTHER, "scale", v)),
    "global": factor(lambda self: SCALE, set_global),
    "object": factor(lambda self: self.options.scale, set_option),
    "method": factor(lambda self: self.options.doubled(), set_option),
    "property": factor(lambda self: self.twice, Scaled.set, twice=property(lambda self: self.scale * 2)),
}
"""Metrics that read Python each in another way, all of which a trace may hold for a while."""


def appended(self):
    self.scales.append(1.0)
    return float(len(self.scales))


class Counting(Scaled):
    """Counts its own calls, in Python."""

    def result(self):
        self.scale += 1.0
        return self.rows * self.scale


class CountsResets(Scaled):
    def reset_state(self):
        super().reset_state()
        self.scale += 1.0


class Drawing(Scaled):
    generator = np.random.RandomState(3)

    def _factor(self):
        return float(self.generator.rand())


class Beta(keras.metrics.FBetaScore):
    """Keras's own, of which a callback sets the weight of recall."""

    def __init__(self):
        super().__init__(average="macro", beta=2.0, name="scaled")

    def update_state(self, y, p, sample_weight=None):
        return super().update_state(keras.ops.one_hot(keras.ops.reshape(y, (-1,)), CLASSES), p)

    def set(self, value):
        self.beta = value


class Owner(Scaled):
    """Computes with an attribute of another metric, which has the name of one of its own."""

    def __init__(self):
        super().__init__()
        self.inner = Scaled()

    def _factor(self):
        return self.inner.scale

    def set(self, value):
        self.inner.scale = value


class Named(Scaled):
    """Finds what it computes with by a text, and in its class."""

    scale_of_all = 1.0

    def _factor(self):
        name = "scale"
        return getattr(self, name) * type(self).scale_of_all

    def set(self, value):
        Named.scale_of_all = self.scale = value


@dataclasses.dataclass(frozen=True)
class Given:
    """An object that is replaced and never changed."""

    scale: float = 2.0


class Asked:
    """An object that says by code of its own what it has."""

    def __getattr__(self, name):
        return Shared.scale


class Child(factor(lambda self: self.zoom, lambda self, v: setattr(self, "zoom", v), zoom=2.0)):
    extra = 1.0

    def result(self):
        return super().result() * self.extra


HELD |= {
    "parent": Child,
    "replaced object": factor(
        lambda self: self.given.scale, lambda self, v: setattr(self, "given", Given(v)), given=Given()
    ),
    "inner": Owner,
    "by name": Named,
    "function replaced": factor(
        lambda self: self.function() * self.scale,
        lambda self, v: setattr(self, "function", lambda: v),
        function=staticmethod(lambda: 2.0),
    ),
    "method replaced": factor(lambda self: self.scale, lambda self, v: setattr(self, "_factor", lambda: v)),
    "keras's": Beta,
}

ASKS = factor(lambda self: self.settings.scale, lambda self, v: setattr(Shared, "scale", v), settings=Asked())
NOT_HELD = {
    "counts": Counting,
    "counts resets": CountsResets,
    "draws": Drawing,
    "appends": factor(appended, lambda self, v: None),
    "asks": ASKS,
}


class Sets(keras.callbacks.Callback):
    """Sets what the metric reads in one hook, of some epochs, or behind each second batch."""

    def __init__(self, metric, hook, epochs):
        super().__init__()
        self.metric, self.epochs, self.calls = metric, epochs, -1
        setattr(self, hook, self._of_batch if "batch" in hook else self._of_epoch)

    def _of_batch(self, batch, logs=None):
        if batch == 1:
            self.metric.set(len(self.epochs) + 1.0)

    def _of_epoch(self, *arguments, **named):
        self.calls += 1
        if self.calls in self.epochs:
            self.metric.set(self.calls + 3.0)


@pytest.fixture(autouse=True)
def _as_before():
    yield
    Shared.scale = OTHER.scale = 2.0
    Named.scale_of_all = 1.0
    set_global(None, 2.0)


def compared(kind, hook, sets_in, *, data=VALIDATION, policy=None, **arguments):
    """Trains by Keras and by us, requires the same history, and returns our trainer."""
    found = []
    for ours in (False, True):
        Shared.scale, OTHER.scale, Named.scale_of_all = 2.0, 2.0, 1.0
        set_global(None, 2.0)
        Drawing.generator = np.random.RandomState(3)
        model = sequential("adam", [kind()])
        metric = model._compile_metrics._user_metrics[0]
        trained = model
        if ours:
            trained = Trainer(model, validation=policy or ValidationPolicy(overlap="always"))
        given = data() if callable(data) else data
        settings = {"epochs": 5, "batch_size": 16, "verbose": 0, "validation_data": given} | arguments
        history = trained.fit(X, Y, callbacks=[Sets(metric, hook, sets_in)] if hook else [], **settings)
        found.append(history.history)
        found[-1]["again"] = [model.evaluate(*VALIDATION, verbose=0)]
    assert_same_history(found[1], found[0])
    return trained


def in_step(trainer):
    return [message for message in trainer.messages if "validating in step with the training: " in message]


@pytest.mark.parametrize("kind", HELD)
@pytest.mark.by_default("several", "object", "item", "global")
def test_a_plain_value_overlaps_and_is_obeyed_when_it_is_set(kind):
    assert not in_step(compared(HELD[kind], None, ()))
    assert not in_step(compared(HELD[kind], "on_epoch_end", (1,)))


@pytest.mark.parametrize("kind", NOT_HELD)
@pytest.mark.by_default("counts", "asks")
def test_what_metrics_set_themselves_or_ask_for_is_computed_in_step(kind):
    model = sequential("adam", [NOT_HELD[kind]()])
    model.evaluate(*VALIDATION, verbose=0)
    _, reason = constants_of(model)
    assert reason is not None
    trainer = Trainer(model, validation=ValidationPolicy(overlap="always"))
    trainer.fit(X, Y, validation_data=VALIDATION, verbose=0)
    assert in_step(trainer)


def test_what_is_asked_of_an_object_with_code_of_its_own_is_obeyed():
    compared(ASKS, "on_epoch_end", (1,))


HOOKS = ["on_epoch_begin", "on_epoch_end", "on_train_begin", "on_train_batch_end", "on_test_begin"]


@pytest.mark.parametrize("hook", [*HOOKS, "on_test_batch_end"])
@pytest.mark.by_default("on_epoch_begin", "on_train_batch_end", "on_test_begin")
def test_every_hook_may_set_it(hook):
    compared(FBeta, hook, (0, 2))


def test_what_is_set_in_every_epoch_is_computed_in_step_soon():
    trainer = compared(Scaled, "on_epoch_end", range(9), epochs=6)
    assert "Scaled.scale is set again and again" in in_step(trainer)[0]


def streamed():
    rows = tf.data.Dataset.from_tensor_slices(VALIDATION).batch(8)
    return rows.map(lambda x, y: (x + tf.random.stateless_normal([], [1, 2]) * 0.0, y)).prefetch(1)


SETTINGS = {
    "tf.data": {"data": streamed},
    "no lag": {"policy": ValidationPolicy(overlap="always", max_lag=0)},
    "long lag": {"policy": ValidationPolicy(overlap="always", max_lag=4)},
    "inside epochs": {"policy": ValidationPolicy(overlap="always", every_steps=3)},
    "every second epoch": {"validation_freq": 2},
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.by_default("tf.data", "long lag")
def test_it_is_obeyed_whatever_the_data_and_the_lag(setting):
    compared(FBeta, "on_epoch_end", (0, 2), **SETTINGS[setting])


def test_a_result_that_is_a_variable_shows_the_validation_s_value_in_the_logs_of_the_training():
    class Live(Scaled):
        def __init__(self):
            super().__init__()
            self.name = "live"

        def result(self):
            return self.rows

    found = []
    for ours in (False, True):
        model = sequential("adam", [Live(), Scaled()])
        trained = Trainer(model, validation=ValidationPolicy(overlap="always")) if ours else model
        found.append(trained.fit(X, Y, epochs=3, validation_data=VALIDATION, verbose=0).history)
    assert_same_history(found[1], found[0])


class Setting(keras.utils.PyDataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return tuple(part[20 * index : 20 * index + 20] for part in VALIDATION)

    def on_epoch_end(self):
        Shared.scale += 1.0


def test_code_that_makes_batches_may_set_it():
    compared(HELD["class"], None, (), data=Setting)


def test_an_evaluation_and_the_next_fit_compute_with_what_is_set_by_then():
    results = []
    for ours in (False, True):
        model = sequential("adam", [FBeta()])
        metric = model._compile_metrics._user_metrics[0]
        trained = Trainer(model) if ours else model
        found = []
        for beta in (0.5, 1.0, 3.0, 0.5, 7.0):
            metric.set(beta)
            found += trained.evaluate(*VALIDATION, verbose=0)
            history = trained.fit(X, Y, validation_data=VALIDATION, verbose=0).history
            found += [values[-1] for values in history.values()]
        results.append(found)
    np.testing.assert_allclose(results[1], results[0], rtol=2e-5)


class Numbers(Scaled):
    """Gives a number of Python's, and not a tensor."""

    def result(self):
        return self.scale / 3.0


def test_a_result_that_is_a_number_of_python_s_is_as_exact_as_keras_s():
    compared(Numbers, "on_epoch_end", (1,))
