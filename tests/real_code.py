"""Models, losses, metrics and callbacks as people write them, each with something that stock models lack.

A builder returns a compiled model from the same seed each time. Where there is a variable outside the model
that a callback may set, the model has it as `knob`, in a list, so that Keras does not track it.
"""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from tests.networks import CLASSES, FEATURES, crossentropy

kl = keras.layers


def _network(*layers: keras.Layer, rate: float = 0.05, kind: type = keras.Sequential) -> keras.Model:
    return kind([keras.Input((FEATURES,)), *layers, kl.Dense(CLASSES)])


def _with_knob(model: keras.Model, knob: object) -> keras.Model:
    vars(model)["knob"] = [knob]
    return model


def closure_loss() -> keras.Model:
    """The loss reads a Keras variable of the enclosing scope."""
    keras.utils.set_random_seed(7)
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


def stateful_loss() -> keras.Model:
    keras.utils.set_random_seed(7)
    model = _network(kl.Dense(8, "relu"))
    loss = RunningLoss()
    model.compile("adam", loss, metrics=["accuracy"])
    return _with_knob(model, loss.mean)


class RawCounter(keras.Model):
    """Counts its steps in a raw `tf.Variable`, which weighs the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.head = kl.Dense(CLASSES)
        self.step = tf.Variable(0.0, name="raw_step")

    def call(self, x):
        return self.head(x)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        if training:
            self.step.assign_add(1.0)
        return loss * (1.0 + self.step / 50.0)


def raw_variable() -> keras.Model:
    keras.utils.set_random_seed(7)
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


def seeded_metric() -> keras.Model:
    keras.utils.set_random_seed(7)
    model = _network(kl.Dense(8, "relu"))
    model.compile("adam", crossentropy(), metrics=[SeededMean(name="drawn")])
    return model


class Unseeded(keras.Layer):
    """Draws from Keras's global seed generator, while training only."""

    def call(self, x, training=False):
        return x + 0.3 * keras.random.normal(keras.ops.shape(x)) if training else x


def global_seed() -> keras.Model:
    keras.utils.set_random_seed(7)
    keras.src.backend.common.global_state.set_global_attribute("global_seed_generator", None)
    model = _network(Unseeded(), kl.Dense(8, "relu"))
    model.compile("adam", crossentropy(), metrics=["accuracy"])
    return model


class Distiller(keras.Model):
    """Learns from a teacher that it keeps in a list where Keras does not find it."""

    def __init__(self) -> None:
        super().__init__()
        self.student, teacher = kl.Dense(CLASSES), _network(kl.Dense(6, "tanh"))
        vars(self)["hidden"] = [teacher]

    def call(self, x):
        return self.student(x)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        told = vars(self)["hidden"][0](x)
        return super().compute_loss(x, y, y_pred, sample_weight, training) + keras.ops.mean(
            (told - y_pred) ** 2
        )


def hidden_teacher() -> keras.Model:
    keras.utils.set_random_seed(7)
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


def two_optimizers() -> keras.Model:
    keras.utils.set_random_seed(7)
    model = TwoOptimizers()
    model.compile(keras.optimizers.Adam(1e-2), keras.optimizers.SGD(0.05, momentum=0.9))
    return model


class Nested(keras.Model):
    """Returns `{m.name: m.result() for m in self.metrics}`, as the Keras guide does: a dict in the logs."""

    def __init__(self) -> None:
        super().__init__()
        self.head = kl.Dense(CLASSES)

    def call(self, x):
        return self.head(x)

    def _count(self, y, p, loss):
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, p)
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


def nested_logs() -> keras.Model:
    keras.utils.set_random_seed(7)
    model = Nested()
    model.compile("adam", crossentropy(), metrics=["accuracy"])
    return model


class Rowwise(Nested):
    """Logs one loss for each row, so that a smaller last batch has a shorter vector."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = keras.losses.sparse_categorical_crossentropy(y, self(x, training=True), from_logits=True)
        weights = self.trainable_weights
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"rows": loss, "z": {"most": keras.ops.max(loss)}}

    def test_step(self, data):
        x, y = data
        loss = keras.losses.sparse_categorical_crossentropy(y, self(x, training=False), from_logits=True)
        return {"rows": loss, "z": {"most": keras.ops.max(loss)}}


def row_logs() -> keras.Model:
    keras.utils.set_random_seed(7)
    model = Rowwise()
    model.compile("adam", crossentropy())
    return model


class OneHot(keras.metrics.F1Score):
    """F1 of each class, from labels that are numbers: a metric whose result is a vector."""

    def update_state(self, y, p, sample_weight=None):
        return super().update_state(keras.ops.one_hot(keras.ops.cast(y, "int32"), CLASSES), p)


def vector_metric() -> keras.Model:
    keras.utils.set_random_seed(7)
    model = _network(kl.Dense(8, "relu"))
    model.compile("adam", crossentropy(), metrics=[OneHot(name="f1")])
    return model


class LiveResult(keras.metrics.Metric):
    """Its result is a variable: what the history shows of training is what the validation left there."""

    def __init__(self, **kwargs) -> None:
        super().__init__(**kwargs)
        self.total = self.add_variable((), "zeros", name="total")

    def update_state(self, y, p, sample_weight=None):
        self.total.assign_add(keras.ops.sum(keras.ops.cast(y, "float32")))

    def result(self):
        return self.total


def live_result() -> keras.Model:
    keras.utils.set_random_seed(7)
    model = _network(kl.Dense(8, "relu"))
    model.compile("adam", crossentropy(), metrics=[LiveResult(name="labels")])
    return model


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


class Annealed(keras.Model):
    """Has a weight in plain Python, which a callback changes, and counts its validation steps."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.beta, self.calls = kl.Dense(CLASSES), 0.0, 0

    def call(self, x):
        p = self.head(x)
        self.add_loss(self.beta * keras.ops.mean(p**2))
        return p

    def test_step(self, data):
        self.calls += 1
        return super().test_step(data)


def eager() -> keras.Model:
    keras.utils.set_random_seed(7)
    model = Annealed()
    model.compile("adam", crossentropy(), metrics=[NumPyMetric(name="right")], run_eagerly=True)
    return model


class Noisy(keras.Layer):
    """Draws with `tf.random`, whose state no snapshot holds, while training only."""

    def call(self, x, training=False):
        return x + 0.3 * tf.random.normal(tf.shape(x)) if training else x


def stateful_random() -> keras.Model:
    keras.backend.clear_session()
    keras.utils.set_random_seed(7)
    model = _network(Noisy(name="noise"), kl.Dense(8, "relu"))
    model.compile("adam", crossentropy(), metrics=["accuracy"])
    return model


class Evaluated(keras.Model):
    """Changes a variable of its own in `test_step`, which the next validation reads."""

    def __init__(self) -> None:
        super().__init__()
        self.head = kl.Dense(CLASSES)
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False, name="calls")

    def call(self, x):
        return self.head(x)

    def test_step(self, data):
        self.calls.assign_add(1.0)
        x, y = data
        loss = self.compute_loss(y=y, y_pred=self(x)) * (1.0 + self.calls / 10.0)
        self._loss_tracker.update_state(loss)
        return {"loss": self._loss_tracker.result()}


def validation_changes_the_model() -> keras.Model:
    keras.utils.set_random_seed(7)
    model = Evaluated()
    model.compile("adam", crossentropy())
    return model


def generator_layer() -> keras.Model:
    """A layer draws from a `tf.random.Generator`, whose state is a variable that Keras does not know."""

    class Drawing(keras.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.generator = tf.random.Generator.from_seed(5)

        def call(self, x, training=False):
            return x + 0.2 * self.generator.normal(tf.shape(x)) if training else x

    keras.utils.set_random_seed(7)
    model = _network(Drawing(), kl.Dense(8, "relu"))
    model.compile("adam", crossentropy(), metrics=["accuracy"])
    return model


def grouped_steps() -> keras.Model:
    """`steps_per_execution`: the batch hooks are called once for three steps."""
    keras.utils.set_random_seed(7)
    model = _network(kl.Dense(8, "relu"))
    model.compile("adam", crossentropy(), metrics=["accuracy"], steps_per_execution=3)
    return model


BUILDERS = {
    builder.__name__: builder
    for builder in (
        *(closure_loss, stateful_loss, raw_variable, seeded_metric, global_seed, hidden_teacher),
        *(two_optimizers, nested_logs, row_logs, vector_metric, live_result, eager, stateful_random),
        *(validation_changes_the_model, generator_layer, grouped_steps),
    )
}
