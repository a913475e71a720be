"""What is told of two configurations: what makes them train differently, and nothing else."""

from __future__ import annotations

import keras
import pytest

from overlap_train._checkpoint.fingerprints import (
    describe_configuration,
    differences,
    shown_rate,
    told_differences,
)

layers = keras.layers


@keras.saving.register_keras_serializable("configuration")
class Scaled(layers.Layer):
    def __init__(self, scale=1.0, **options):
        super().__init__(**options)
        self.scale = scale

    def call(self, x):
        return x * self.scale


class Subclassed(keras.Model):
    def __init__(self, alpha):
        super().__init__()
        self.alpha, self.dense = alpha, layers.Dense(1, activation="tanh" if alpha else None)

    def call(self, x):
        return self.dense(x) * self.alpha


def functional(*, factor=0.5, rate=0.1, residual=True, scale=1.0, function=None, dtype=None):
    x = keras.Input((4,))
    y = layers.Dense(4, activation=function, kernel_regularizer="l2", dtype=dtype)(x)
    y = Scaled(scale)(layers.Dropout(rate)(y))
    y = layers.Add()([x, y]) if residual else layers.Add()([y, y])
    y = layers.Bidirectional(layers.GRU(2, dropout=rate))(layers.Reshape((2, 2))(y * factor))
    made = keras.Model(x, layers.Dense(1)(y))
    made.compile("adam", "mse")
    return made


def compiled(optimizer="sgd", **options):
    made = keras.Sequential([keras.Input((2,)), layers.Dense(1)])
    made.compile(optimizer, "mse", **options)
    return made


def told(first, second, rate=None):
    return "; ".join(differences(describe_configuration(first), describe_configuration(second), rate))


@pytest.mark.parametrize(
    "make",
    [
        functional,
        lambda: functional(function=lambda x: x * 2),
        lambda: Subclassed(0.5),
        lambda: compiled(keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.1, 100))),
        lambda: compiled(keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.1))),
        lambda: keras.Sequential(
            [keras.Input((8, 8, 1)), layers.RandomFlip(), layers.GaussianNoise(0.1), layers.Flatten()]
        ),  # not compiled
    ],
    ids=["functional", "lambda", "subclassed", "schedule", "loss scale", "unseeded"],
)
def test_what_is_made_twice_is_configured_alike(make):
    assert told(make(), make()) == ""


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"factor": 0.7}, "multiply.inputs"),
        ({"rate": 0.2}, "dropout.rate is 0.2 (was 0.1)"),
        ({"residual": False}, "add.inputs"),
        ({"scale": 3.0}, "scaled.scale is 3 (was 1)"),
        ({"function": "relu"}, "dense.activation is relu (was linear)"),
        ({"dtype": "mixed_bfloat16"}, "dense.dtype is mixed_bfloat16 (was float32)"),
    ],
    ids=["constant", "rate", "graph", "own attribute", "activation", "policy"],
)
def test_what_a_layer_does_otherwise_is_told(changes, expected):
    assert expected in told(functional(), functional(**changes))


def test_an_attribute_of_a_subclassed_model_is_told():
    assert told(Subclassed(0.5), Subclassed(0.75)) == "subclassed.alpha is 0.75 (was 0.5)"


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (compiled(keras.optimizers.SGD(momentum=0.9)), compiled(), "optimizer.momentum is 0 (was 0.9)"),
        (compiled(keras.optimizers.SGD(clipnorm=1)), compiled(), "optimizer.clipnorm is None (was 1)"),
        (compiled(steps_per_execution=2), compiled(), "compile.steps_per_execution is 1 (was 2)"),
        (
            compiled(keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, 100))),
            compiled(keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, 50))),
            "optimizer.learning_rate.decay_steps is 50 (was 100)",
        ),
    ],
    ids=["momentum", "clipnorm", "steps per execution", "schedule"],
)
def test_what_an_optimizer_does_otherwise_is_told(before, after, expected):
    assert told(before, after) == expected


def test_the_learning_rate_that_stays_is_told_unless_it_is_the_one_that_was_given():
    before, after = compiled(keras.optimizers.SGD(0.1)), compiled(keras.optimizers.SGD(0.01))
    assert told(before, after, "0.05") == (
        "optimizer.learning_rate stays 0.05, as in the checkpoint (given: 0.01)"
    )
    assert told(before, after, shown_rate(after)) == ""  # a second fit of a model that a callback has changed
    schedule = compiled(keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, 100)))
    assert shown_rate(schedule) is None
    assert "optimizer.learning_rate is 0.1 (was CosineDecay)" in told(schedule, before, "0.05")


def test_many_differences_are_counted_and_long_values_are_shortened():
    said = differences({f"a {number}": "x" for number in range(20)}, {})
    assert said[0] == "a 0 is missing (x)"
    assert told_differences(said).endswith("; and 12 more")

    def rescaling(count):
        made = keras.Sequential([keras.Input((1,)), layers.Rescaling([*range(99), count])])
        return describe_configuration(made)

    assert all(len(text) < 120 for text in rescaling(1).values())
    assert differences(rescaling(1), rescaling(2)) == ["rescaling.scale is another"]


def test_of_a_part_that_is_another_no_settings_are_told():
    before = {"a": "SGD", "a.momentum": "0.9", "b": "x", "ab": "y"}
    assert differences(
        before, {"a": "Adam", "a.beta_1": "0.9", "b": "x", "ab": "z", "c": "new", "c.d": "e"}
    ) == [
        "a is Adam (was SGD)",
        "ab is z (was y)",
        "c is new (new)",
    ]
