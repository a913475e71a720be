"""Models, losses, metrics and callbacks as people write them, each with something that stock models lack.

A builder returns a compiled model from the same seed each time. Where there is a variable outside the model
that a callback may set, the model has it as `knob`, in a list, so that Keras does not track it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from tests.networks import CLASSES, FEATURES, crossentropy

kl = keras.layers


BUILDERS: dict[str, Callable[[], keras.Model]] = {}


def builder(make: Callable[[], keras.Model]) -> Callable[[], keras.Model]:
    """Adds a function to the builders, and sets the seed before each of its calls."""

    @functools.wraps(make)
    def seeded() -> keras.Model:
        keras.utils.set_random_seed(7)
        return make()

    BUILDERS[make.__name__] = seeded
    return seeded


def _network(*layers: keras.Layer) -> keras.Model:
    return keras.Sequential([keras.Input((FEATURES,)), *layers, kl.Dense(CLASSES)])


def _hidden(*layers: keras.Layer, metrics=("accuracy",), **options) -> keras.Model:
    model = _network(*layers, kl.Dense(8, "relu"))
    model.compile("adam", crossentropy(), metrics=list(metrics), **options)
    return model


def _with_knob(model: keras.Model, knob: object) -> keras.Model:
    vars(model)["knob"] = [knob]
    return model


@builder
def closure_loss() -> keras.Model:
    """The loss reads a Keras variable of the enclosing scope."""
    weight, inner = keras.Variable(1.0, trainable=False, name="weight"), crossentropy()
    model = _network(kl.Dense(8, "relu"))
    model.compile(keras.optimizers.SGD(0.1), lambda y, p: weight * inner(y, p), metrics=["accuracy"])
    return _with_knob(model, weight)


class RunningLoss(keras.losses.Loss):
    """Divides by a running mean that it keeps itself, in validation too."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = keras.Variable(1.0, trainable=False, name="running_mean")

    def call(self, y, p):
        loss = keras.losses.sparse_categorical_crossentropy(y, p, from_logits=True)
        self.mean.assign(0.9 * self.mean + 0.1 * keras.ops.mean(loss))
        return loss / (1.0 + self.mean)


@builder
def stateful_loss() -> keras.Model:
    model, loss = _hidden(), RunningLoss()
    model.compile("adam", loss, metrics=["accuracy"])
    return _with_knob(model, loss.mean)


class Headed(keras.Model):
    """A subclassed model of one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.head = kl.Dense(CLASSES)

    def call(self, x):
        return self.head(x)


class RawCounter(Headed):
    """Counts its steps in a raw `tf.Variable`, which weighs the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.step = tf.Variable(0.0, name="raw_step")

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        if training:
            self.step.assign_add(1.0)
        return loss * (1.0 + self.step / 50.0)


@builder
def raw_variable() -> keras.Model:
    model = RawCounter()
    model.compile(keras.optimizers.SGD(0.05), crossentropy(), metrics=["accuracy"])
    return _with_knob(model, model.step)


class SeededMean(keras.metrics.Mean):
    """Draws from a seed generator of its own, as ranking metrics do to break ties."""

    def __init__(self, **kwargs) -> None:
        super().__init__(**kwargs)
        self.seeds = keras.random.SeedGenerator(3)

    def update_state(self, y, p, sample_weight=None):
        return super().update_state(keras.random.uniform((), seed=self.seeds))


@builder
def seeded_metric() -> keras.Model:
    return _hidden(metrics=[SeededMean(name="drawn")])


class Unseeded(keras.Layer):
    """Draws from Keras's global seed generator, while training only."""

    def call(self, x, training=False):
        return x + 0.3 * keras.random.normal(keras.ops.shape(x)) if training else x


@builder
def global_seed() -> keras.Model:
    keras.src.backend.common.global_state.set_global_attribute("global_seed_generator", None)
    return _hidden(Unseeded())


class Distiller(Headed):
    """Learns from a teacher that it keeps in a list where Keras does not find it."""

    def __init__(self) -> None:
        super().__init__()
        vars(self)["hidden"] = [_network(kl.Dense(6, "tanh"))]

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        return loss + keras.ops.mean((vars(self)["hidden"][0](x) - y_pred) ** 2)


@builder
def hidden_teacher() -> keras.Model:
    model = Distiller()
    model.compile("adam", crossentropy(), metrics=["accuracy"])
    return _with_knob(model, vars(model)["hidden"][0].layers[0].kernel)


class TwoOptimizers(keras.Model):
    """Two halves with an optimizer each, of which Keras knows none, and a metric of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = kl.Dense(CLASSES), kl.Dense(CLASSES)

    def compile(self, first, second):
        super().compile()
        self.first, self.second = first, second
        self.mean = keras.metrics.Mean(name="loss")
        vars(self)["knob"] = [second.learning_rate]

    def call(self, x):
        return self.left(x) + self.right(x)

    @property
    def metrics(self):
        return [self.mean]

    def _loss(self, data):
        x, y = data
        return keras.ops.mean(keras.losses.sparse_categorical_crossentropy(y, self(x), from_logits=True))

    def train_step(self, data):
        with tf.GradientTape(persistent=True) as tape:
            loss = self._loss(data)
        for layer, optimizer in ((self.left, self.first), (self.right, self.second)):
            weights = layer.trainable_weights
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        self.mean.update_state(loss)
        return {"loss": self.mean.result()}

    def test_step(self, data):
        self.mean.update_state(self._loss(data))
        return {"loss": self.mean.result()}


@builder
def two_optimizers() -> keras.Model:
    model = TwoOptimizers()
    model.compile(keras.optimizers.Adam(1e-2), keras.optimizers.SGD(0.05, momentum=0.9))
    return model


class Nested(Headed):
    """Returns `{m.name: m.result() for m in self.metrics}`, as the Keras guide does: a dict in the logs."""

    def _count(self, y, p, loss):
        for metric in self.metrics:
            metric.update_state(*((loss,) if metric.name == "loss" else (y, p)))
        return {metric.name: metric.result() for metric in self.metrics}

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            p = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=p)
        weights = self.trainable_weights
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return self._count(y, p, loss)

    def test_step(self, data):
        x, y = data
        p = self(x, training=False)
        return self._count(y, p, self.compute_loss(y=y, y_pred=p))


@builder
def nested_logs() -> keras.Model:
    model = Nested()
    model.compile("adam", crossentropy(), metrics=["accuracy"])
    return model


class Rowwise(Headed):
    """Logs one loss for each row, so that a smaller last batch has a shorter vector."""

    def _logs(self, x, y):
        loss = keras.losses.sparse_categorical_crossentropy(y, self(x), from_logits=True)
        return {"rows": loss, "z": {"most": keras.ops.max(loss)}}

    def train_step(self, data):
        with tf.GradientTape() as tape:
            logs = self._logs(*data)
        weights = self.trainable_weights
        self.optimizer.apply(tape.gradient(logs["rows"], weights), weights)
        return logs

    def test_step(self, data):
        return self._logs(*data)


@builder
def row_logs() -> keras.Model:
    model = Rowwise()
    model.compile("adam", crossentropy())
    return model


class OneHot(keras.metrics.F1Score):
    """F1 of each class, from labels that are numbers: a metric whose result is a vector."""

    def update_state(self, y, p, sample_weight=None):
        return super().update_state(keras.ops.one_hot(keras.ops.cast(y, "int32"), CLASSES), p)


@builder
def vector_metric() -> keras.Model:
    return _hidden(metrics=[OneHot(name="f1")])


class LiveResult(keras.metrics.Metric):
    """Its result is a variable: what the history shows of training is what the validation left there."""

    def __init__(self, **kwargs) -> None:
        super().__init__(**kwargs)
        self.total = self.add_variable((), "zeros", name="total")

    def update_state(self, y, p, sample_weight=None):
        self.total.assign_add(keras.ops.sum(keras.ops.cast(y, "float32")))

    def result(self):
        return self.total


@builder
def live_result() -> keras.Model:
    return _hidden(metrics=[LiveResult(name="labels")])


class NumPyMetric(keras.metrics.Metric):
    """Computes with NumPy, as `run_eagerly` allows."""

    def __init__(self, **kwargs) -> None:
        super().__init__(**kwargs)
        self.seen: list[float] = []

    def update_state(self, y, p, sample_weight=None):
        self.seen.append(float(np.mean(np.argmax(p.numpy(), 1) == y.numpy())))

    def result(self):
        return float(np.mean(self.seen)) if self.seen else 0.0

    def reset_state(self):
        self.seen = []


class Annealed(Headed):
    """Has a weight in plain Python, which a callback changes, and counts its validation steps."""

    def __init__(self) -> None:
        super().__init__()
        self.beta, self.calls = 0.0, 0

    def call(self, x):
        p = super().call(x)
        self.add_loss(self.beta * keras.ops.mean(p**2))
        return p

    def test_step(self, data):
        self.calls += 1
        return super().test_step(data)


@builder
def eager() -> keras.Model:
    model = Annealed()
    model.compile("adam", crossentropy(), metrics=[NumPyMetric(name="right")], run_eagerly=True)
    return model


class Noisy(keras.Layer):
    """Draws with `tf.random`, whose state no snapshot holds, in training and validation."""

    def call(self, x, training=False):
        return x + (0.3 if training else 0.1) * tf.random.normal(tf.shape(x))


@builder
def stateful_random() -> keras.Model:
    keras.backend.clear_session()
    keras.utils.set_random_seed(7)  # which the session has forgotten
    return _hidden(Noisy(name="noise"))


class Counting(keras.Layer):
    """Counts its calls in Python, outside TensorFlow, and scales by the count."""

    def call(self, x):
        counted = vars(self).setdefault("counted", [])

        def count():
            counted.append(1)
            return len(counted)

        times = tf.ensure_shape(tf.py_function(count, [], tf.int32), ())
        return x * (1.0 + 0.01 * tf.cast(times, x.dtype))


@builder
def python_in_the_step() -> keras.Model:
    return _hidden(Counting(name="counting"))


class Evaluated(Headed):
    """Changes a variable of its own in `test_step`, which the next validation reads."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False, name="calls")

    def test_step(self, data):
        self.calls.assign_add(1.0)
        x, y = data
        loss = self.compute_loss(y=y, y_pred=self(x)) * (1.0 + self.calls / 10.0)
        self._loss_tracker.update_state(loss)
        return {"loss": self._loss_tracker.result()}


@builder
def validation_changes_the_model() -> keras.Model:
    model = Evaluated()
    model.compile("adam", crossentropy())
    return model


@builder
def generator_layer() -> keras.Model:
    """A layer draws from a `tf.random.Generator`, whose state is a variable that Keras does not know."""

    class Drawing(keras.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.generator = tf.random.Generator.from_seed(5)

        def call(self, x, training=False):
            return x + 0.2 * self.generator.normal(tf.shape(x)) if training else x

    return _hidden(Drawing())


@builder
def grouped_steps() -> keras.Model:
    """`steps_per_execution`: the batch hooks are called once for three steps."""
    return _hidden(steps_per_execution=3)
