"""What is told of two configurations: what makes them train differently, and nothing else."""

from __future__ import annotations

import keras
import pytest

from overlap_train._checkpoint.configuration import (
    describe_callbacks,
    describe_configuration,
    differences,
    shown_rate,
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
    return differences(describe_configuration(first), describe_configuration(second), rate)


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
    assert told(make(), make()) is None


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
        (compiled(loss_weights=[2.0]), compiled(), "compile.loss_weights is None (was [2.0])"),
        (compiled(steps_per_execution=2), compiled(), "compile.steps_per_execution is 1 (was 2)"),
        (
            compiled(keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, 100))),
            compiled(keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, 50))),
            "optimizer.learning_rate.decay_steps is 50 (was 100)",
        ),
    ],
    ids=["momentum", "clipnorm", "loss weights", "steps per execution", "schedule"],
)
def test_what_an_optimizer_does_otherwise_is_told(before, after, expected):
    assert told(before, after) == expected


def test_the_learning_rate_that_stays_is_told_unless_it_is_the_one_that_was_given():
    before, after = compiled(keras.optimizers.SGD(0.1)), compiled(keras.optimizers.SGD(0.01))
    assert told(before, after, "0.05") == (
        "optimizer.learning_rate stays 0.05, as in the checkpoint (given: 0.01)"
    )
    assert (
        told(before, after, shown_rate(after)) is None
    )  # a second fit of a model that a callback has changed
    schedule = compiled(keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, 100)))
    assert shown_rate(schedule) is None
    assert "optimizer.learning_rate is 0.1 (was CosineDecay)" in told(schedule, before, "0.05")


def test_settings_of_callbacks_are_told_but_not_what_they_remember():
    def stopping(patience):
        callback = keras.callbacks.EarlyStopping("loss", patience=patience, min_delta=0.1)
        callback.set_model(compiled())
        return callback

    first, second = stopping(3), stopping(3)
    first.on_train_begin()
    first.on_epoch_end(0, {"loss": 1.0})  # which turns min_delta
    same = describe_callbacks([first]), describe_callbacks([second])
    assert differences(*same, None) is None
    assert differences(same[0], describe_callbacks([stopping(5)]), None) == (
        "EarlyStopping.patience is 5 (was 3)"
    )
    assert "EarlyStopping_2.patience" in describe_callbacks([first, second])


class OwnStopping(keras.callbacks.EarlyStopping):
    """Takes a setting of Keras's from its user, and adds one."""

    def __init__(self, monitor, colour="red"):
        super().__init__(monitor=monitor)
        self.colour = colour


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ({"monitor": "val_loss"}, {"monitor": "loss"}, "ModelCheckpoint.monitor is loss (was val_loss)"),
        ({"mode": "min"}, {"mode": "max"}, "ModelCheckpoint.mode is max (was min)"),
        ({"save_freq": "epoch"}, {"save_freq": 3}, "ModelCheckpoint.save_freq is 3 (was epoch)"),
    ],
)
def test_what_a_callback_watches_is_told(one, other, expected):
    def described(settings):
        return describe_callbacks([keras.callbacks.ModelCheckpoint("best.keras", **settings)])

    assert differences(described(one), described(other), None) == expected


def test_of_callbacks_derived_from_keras_the_settings_of_keras_are_told():
    before, after = (describe_callbacks([OwnStopping(name, name)]) for name in ("loss", "accuracy"))
    assert differences(before, after, None) == "OwnStopping.monitor is accuracy (was loss)"


def falling(epoch):
    return 0.1 / (1 + epoch)


def level(epoch):
    return 0.1


def test_a_schedule_is_told_by_its_name():
    before, after, same = (
        describe_callbacks([keras.callbacks.LearningRateScheduler(each)]) for each in (falling, level, level)
    )
    assert differences(before, after, None) == "LearningRateScheduler.schedule is level (was falling)"
    assert differences(after, same, None) is None


def test_where_callbacks_write_is_not_told_but_how_they_do():
    def described(place, separator=","):
        logger = keras.callbacks.CSVLogger(f"{place}.csv", separator=separator)
        return describe_callbacks([logger, keras.callbacks.ModelCheckpoint(f"{place}.keras")])

    assert differences(described("a"), described("b"), None) is None
    assert differences(described("a"), described("a", ";"), None) == "CSVLogger.sep is ; (was ,)"


def test_many_differences_are_counted_and_long_values_are_shortened():
    before = {f"a.{number}": "x" for number in range(20)}
    assert differences(before, {}, None).endswith("; and 12 more")
    assert differences({}, before, None) is None  # of a checkpoint that does not say
    long = describe_configuration(
        keras.Sequential([keras.Input((1,)), layers.CategoryEncoding(3), layers.Rescaling(list(range(99)))])
    )
    assert all(len(text) < 120 for text in long.values())
