"""Models and data for differential tests: each makes the same thing twice from the same seed."""

from __future__ import annotations

from dataclasses import dataclass

import keras
import numpy as np
import tensorflow as tf

from tests.seeds import set_random_seed

ROWS, VALIDATION_ROWS, FEATURES, CLASSES = 203, 91, 12, 4


def drawn_in_python(x, y) -> tf.data.Dataset:
    """Returns the rows, from a pipeline that calls Python, whose position no other process finds again."""
    rows = tf.data.Dataset.from_tensor_slices((x, y))
    return rows.map(lambda a, b: (tf.ensure_shape(tf.py_function(lambda v: v, [a], a.dtype), a.shape), b))


def arrays(rows: int = ROWS, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Returns x float32[rows, FEATURES] and y int64[rows] that has something to do with it."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, FEATURES)).astype("float32")
    return x, np.argmax(x[:, :CLASSES] + 0.3 * rng.normal(size=(rows, CLASSES)), axis=1)


def crossentropy() -> keras.losses.Loss:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def sequential(optimizer="adam", metrics=("accuracy",), **compile_arguments) -> keras.Model:
    set_random_seed(7)
    model = keras.Sequential(
        [
            keras.Input((FEATURES,)),
            keras.layers.Dense(16, activation="relu", name="hidden"),
            keras.layers.Dropout(0.25, name="drop"),
            keras.layers.Dense(CLASSES, name="head"),
        ],
        name="sequential",
    )
    model.compile(optimizer, crossentropy(), metrics=list(metrics), **compile_arguments)
    return model


def linear(*makers, kind=keras.Sequential, optimizer="sgd", **compile_arguments) -> keras.Model:
    """A layer of logits, behind those that functions make, if any."""
    set_random_seed(7)
    layers = [make() for make in makers]
    model = kind([keras.Input((FEATURES,)), *layers, keras.layers.Dense(CLASSES)])
    model.compile(optimizer, crossentropy(), **compile_arguments)
    return model


class Buckets(keras.layers.Layer):
    """Numbers as words of a vocabulary of 20, many of them alike within a batch."""

    def call(self, inputs):
        return keras.ops.cast(keras.ops.clip(inputs * 4 + 10, 0, 19), "int32")


def looking_up(optimizer="adam", **embedding) -> keras.Model:
    """A model with a sparse gradient: one row for each word of the batch."""
    set_random_seed(7)
    numbers = keras.Input((FEATURES,))
    vectors = keras.layers.Embedding(20, 6, **embedding)(Buckets()(numbers))
    logits = keras.layers.Dense(CLASSES)(keras.layers.GlobalAveragePooling1D()(vectors))
    model = keras.Model(numbers, logits)
    model.compile(optimizer, crossentropy(), metrics=["accuracy"])
    return model


def functional(rate: float = 0.05) -> keras.Model:
    """Two inputs, two outputs with a loss and metrics each."""
    set_random_seed(7)
    left, right = keras.Input((8,), name="left"), keras.Input((4,), name="right")
    hidden = keras.layers.Concatenate()([keras.layers.Dense(8, activation="relu")(left), right])
    label = keras.layers.Dense(CLASSES, name="label")(hidden)
    size = keras.layers.Dense(1, name="size")(hidden)
    model = keras.Model({"left": left, "right": right}, {"label": label, "size": size})
    model.compile(
        keras.optimizers.SGD(rate, momentum=0.9),
        {"label": crossentropy(), "size": "mse"},
        metrics={"label": ["accuracy"], "size": ["mae"]},
        loss_weights={"label": 1.0, "size": 0.3},
    )
    return model


def functional_data(rows: int = ROWS, seed: int = 0) -> tuple[dict, dict]:
    x, y = arrays(rows, seed)
    return {"left": x[:, :8], "right": x[:, 8:]}, {"label": y, "size": x.sum(1, keepdims=True)}


class Awkward(keras.Model):
    """A subclassed model with BatchNormalization, Dropout, a regulariser and add_loss."""

    def __init__(self, norm: type[keras.layers.Layer] = keras.layers.BatchNormalization) -> None:
        super().__init__()
        self.hidden = keras.layers.Dense(16, kernel_regularizer="l2")
        self.norm = norm()
        self.drop = keras.layers.Dropout(0.3)
        self.head = keras.layers.Dense(CLASSES)

    def call(self, x, training=False):
        hidden = self.norm(self.hidden(x), training=training)
        self.add_loss(1e-3 * keras.ops.mean(hidden**2))
        return self.head(self.drop(keras.ops.relu(hidden), training=training))


def subclassed(optimizer="adam", norm=keras.layers.BatchNormalization) -> keras.Model:
    set_random_seed(7)
    model = Awkward(norm)
    model.compile(optimizer, crossentropy(), metrics=["accuracy"], weighted_metrics=["accuracy"])
    return model


class Largest(keras.metrics.Metric):
    """The largest output seen: its state is a maximum, and adding two of them would be wrong."""

    def __init__(self, name: str = "largest") -> None:
        super().__init__(name=name)
        self.value = self.add_weight(name="value", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.value.assign(keras.ops.maximum(self.value, keras.ops.max(y_pred)))

    def result(self):
        return self.value + 0.0


@dataclass(frozen=True)
class Outcome:
    """What a fit has led to, which stays when its model is fitted again."""

    history: dict[str, list[float]]
    epochs: list[int]
    values: list[np.ndarray]

    @classmethod
    def of(cls, model: keras.Model) -> Outcome:
        variables = (*model.variables, *model.optimizer.variables)
        values = [np.array(keras.ops.convert_to_numpy(variable)) for variable in variables]
        return cls(dict(model.history.history), list(model.history.epoch), values)


def assert_same_outcome(model: keras.Model, expected: Outcome, rtol: float = 1e-5) -> None:
    """Same history, epochs, weights, other state and optimizer variables."""
    found = Outcome.of(model)
    assert_same_history(found.history, expected.history, rtol)
    assert found.epochs == expected.epochs
    for ours, theirs in zip(found.values, expected.values, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=1e-6)


def assert_same_history(actual: dict, expected: dict, rtol: float = 1e-5) -> None:
    """Same keys, lengths and values."""
    assert list(actual) == list(expected)
    for name in expected:
        np.testing.assert_allclose(actual[name], expected[name], rtol=rtol, atol=1e-7, err_msg=name)


def assert_same_weights(actual: keras.Model, expected: keras.Model, rtol: float = 1e-5) -> None:
    """Same weights, other state and optimizer variables."""
    for a, b in zip(
        actual.variables + actual.optimizer.variables,
        expected.variables + expected.optimizer.variables,
        strict=True,
    ):
        np.testing.assert_allclose(
            keras.ops.convert_to_numpy(a), keras.ops.convert_to_numpy(b), rtol=rtol, atol=1e-6, err_msg=a.path
        )


def assert_alike(actual, expected, rtol: float = 1e-5, atol: float = 1e-6, where: str = "") -> None:
    """Same structure and the same numbers, up to rounding; of a `History` its logs."""
    if isinstance(expected, keras.callbacks.History):
        actual, expected = actual.history, expected.history
    if isinstance(expected, dict):
        assert list(actual) == list(expected), where
        for name, value in expected.items():
            assert_alike(actual[name], value, rtol, atol, f"{where} {name}")
    elif isinstance(expected, (list, tuple)) and not isinstance(actual, np.ndarray):
        assert len(actual) == len(expected), f"{where}: {actual} and {expected}"
        for number, (one, other) in enumerate(zip(actual, expected, strict=True)):
            assert_alike(one, other, rtol, atol, f"{where} {number}")
    elif isinstance(expected, (bool, str, type, type(None))):
        assert actual == expected, where
    else:
        actual, expected = map(keras.ops.convert_to_numpy, (actual, expected))
        np.testing.assert_allclose(actual, expected, rtol, atol, err_msg=where)
