"""Trainings are told apart by data, variables and history, and settings that differ are named."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import ValidationSet
from overlap_train._checkpoint.fingerprints import (
    describe_configuration,
    describe_data,
    describe_sets,
    differences,
    fingerprint,
    listed_differences,
    rate_text,
)
from overlap_train._data.array_feed import make_feed
from overlap_train._keras.data import recognize
from tests.whole_fits.comparing import Rows

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
        self._made = id(self)  # private, and so no setting

    def call(self, x):
        return self.dense(x) * self.alpha


def functional(*, rate=0.1, scale=1.0, function=None):
    x = keras.Input((4,))
    y = layers.Dense(4, activation=function, kernel_regularizer="l2")(x)
    y = Scaled(scale)(layers.Dropout(rate)(y))
    y = layers.Add()([x, y])
    y = layers.Bidirectional(layers.GRU(2, dropout=rate))(layers.Reshape((2, 2))(y * 0.5))
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
        lambda: Subclassed(0.5),
        lambda: compiled(keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.1, 100))),
        lambda: compiled(keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.1))),
        lambda: keras.Sequential(
            [keras.Input((8, 8, 1)), layers.RandomFlip(), layers.GaussianNoise(0.1), layers.Flatten()]
        ),  # not compiled
    ],
    ids=["functional", "subclassed", "schedule", "loss scale", "unseeded"],
)
def test_what_is_made_twice_is_configured_alike(make):
    assert told(make(), make()) == ""


def sgd(**options):
    return compiled(keras.optimizers.SGD(**options))


def cosine(steps):
    return compiled(keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, steps)))


def wired(skips):
    x = keras.Input((2,))
    y = layers.Dense(2)(x)
    return keras.Model(x, layers.Add()([y, layers.Dense(2)(x if skips else y)]))


def of(layer):
    return keras.Sequential([keras.Input((2,)), layer])


PLAIN = functional()
OTHERWISE = {
    "rate": (PLAIN, functional(rate=0.2), "dropout.rate is 0.2 (was 0.1)"),
    "own attribute": (PLAIN, functional(scale=3.0), "scaled.scale is 3 (was 1)"),
    "activation": (PLAIN, functional(function="relu"), "dense.activation is relu (was linear)"),
    "lambda": (
        of(layers.Lambda(lambda x: x)),
        of(layers.Lambda(keras.ops.abs)),
        "lambda.function is abs (was a lambda)",
    ),
    "class": (of(layers.Flatten(name="a")), of(layers.ReLU(name="a")), "a is ReLU (was Flatten)"),
    "dtype": (of(layers.ReLU(dtype="float16")), of(layers.ReLU()), "re_lu.dtype is float32 (was float16)"),
    "longest": (Subclassed("a" * 100), Subclassed("b"), f"subclassed.alpha is b (was {'a' * 100})"),
    "subclassed": (Subclassed(0.5), Subclassed(0.75), "subclassed.alpha is 0.75 (was 0.5)"),
    "wiring": (wired(True), wired(False), "functional.wiring is another"),
    "momentum": (sgd(momentum=0.9), sgd(), "optimizer.momentum is 0 (was 0.9)"),
    "execution": (compiled(steps_per_execution=2), sgd(), "compile.steps_per_execution is 1 (was 2)"),
    "schedule": (cosine(100), cosine(50), "optimizer.learning_rate is another"),
}


@pytest.mark.parametrize(("before", "after", "expected"), OTHERWISE.values(), ids=OTHERWISE)
def test_what_is_configured_otherwise_is_told(before, after, expected):
    assert expected in told(before, after)
    if " is " in expected and before is not PLAIN:
        assert told(before, after) == expected


def test_the_learning_rate_that_stays_is_told_unless_it_is_the_one_that_was_given():
    before, after = compiled(keras.optimizers.SGD(0.1)), compiled(keras.optimizers.SGD(0.01))
    assert told(before, after, "0.05") == (
        "optimizer.learning_rate stays 0.05, as in the checkpoint (given: 0.01)"
    )
    assert told(before, after, rate_text(after)) == ""  # a second fit of a model that a callback has changed
    schedule = cosine(100)
    assert rate_text(schedule) is None
    assert "optimizer.learning_rate is 0.1 (was CosineDecay(" in told(schedule, before, "0.05")


def test_many_differences_are_counted_and_long_values_are_shortened():
    said = differences({f"a {number}": "x" for number in range(20)}, {})
    assert said[0] == "a 0 is missing (x)"
    assert listed_differences(said).endswith("; and 12 more")

    def rescaling(count):
        made = keras.Sequential([keras.Input((1,)), layers.Rescaling([*range(99), count])])
        return describe_configuration(made)

    assert all(len(text) < 120 for text in rescaling(1).values())
    assert differences(rescaling(1), rescaling(2)) == ["rescaling.scale is another"]


X, Y = np.arange(12.0, dtype="float32").reshape(6, 2), np.zeros((6, 1), "float32")


def model(optimizer="sgd", loss="mse", metrics=(), units=1):
    made = keras.Sequential([keras.Input((2,)), keras.layers.Dense(units)])
    made.compile(optimizer, loss, metrics=list(metrics), run_eagerly=True)
    made.test_on_batch(X, np.zeros((6, units)))  # which builds the metrics
    return made


def feed(x=X):
    return make_feed(recognize(x, Y, batch_size=2), hold_in_memory=lambda size: True)


def others(one, other):
    """Returns what a user is told of two trainings."""
    return differences(fingerprint(one, feed()), fingerprint(other, feed()))


def own_loss(y, p):
    return keras.ops.mean(y - p)


class Untold(keras.metrics.MeanAbsoluteError):
    """Cannot say what it was made with."""

    def get_config(self):
        raise NotImplementedError


def test_what_differs_is_told_by_its_name():
    kernel, bias = others(model(), model(units=3))
    assert kernel == "sequential/dense/kernel is 2x3 float32 (was 2x1 float32)"
    assert bias.startswith("sequential/dense/bias is 3 f")
    assert others(model(), model()) == [], "whatever numbers the process has given to names"
    assert others(model(), model(optimizer="adam")) == ["optimizer is Adam (was SGD)"]
    assert others(model(), model(loss="mae")) == ["loss is mae (was mse)"]
    assert others(model(), model(metrics=["mae"])) == ["metric mae is new (MeanAbsoluteError)"]
    assert others(model(), model(metrics=[Untold(name="untold")])) == ["metric untold is new (Untold)"]
    made = model()
    made.optimizer = None
    assert others(made, model()) == ["optimizer is SGD (was NoneType)"]
    made = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1), keras.layers.Dense(1)])
    made.compile("sgd", "mse")
    assert others(model(), made) == [
        "sequential/dense/kernel (2) is new (1x1 float32)",
        "sequential/dense/bias (2) is new (1 float32)",
    ]


def described_data(data):
    found = fingerprint(model(), make_feed(recognize(data), hold_in_memory=lambda size: True))
    return {name: text for name, text in found.items() if name.startswith("training data")}


def test_a_training_pipeline_is_not_told_by_where_its_files_lie():
    def read(directory, count=4):
        names = tf.data.Dataset.from_tensor_slices([f"{directory}/{n}.bin" for n in range(count)])
        return names.map(lambda name: (tf.strings.length(name)[None], tf.zeros([1]))).batch(2)

    assert described_data(read("here")) == described_data(read("elsewhere"))
    assert described_data(read("here")) != described_data(read("here", count=3))
    assert described_data(read("here").repeat())["training data.batches"] == "endless"


def test_a_loss_is_told_by_its_class_and_settings_or_by_its_name():
    crossentropy = keras.losses.BinaryCrossentropy
    assert others(model(loss="mse"), model(loss=own_loss)) == ["loss is own_loss (was mse)"]
    one, other = model(loss=crossentropy()), model(loss=crossentropy(from_logits=True))
    assert others(one, model(loss=crossentropy())) == []
    assert others(one, other) == ["loss.from_logits is True (was False)"]


def test_losses_of_several_outputs_have_a_name_each():
    inputs = keras.Input((2,))
    outputs = {name: keras.layers.Dense(1, name=name)(inputs) for name in ("a", "b")}
    made = keras.Model(inputs, outputs)

    def described(*arguments):
        made.compile("sgd", *arguments)
        return fingerprint(made, feed())

    found = described({"a": "mse", "b": own_loss})
    assert (found["loss of a"], found["loss of b"]) == ("mse", "own_loss")
    one, other = (described("mse", {"a": weight, "b": 1.0}) for weight in (2.0, 3.0))
    assert differences(one, other) == [
        "compile.loss_weights is {'a': 3.0, 'b': 1.0} (was {'a': 2.0, 'b': 1.0})"
    ]


def test_metrics_are_told_by_their_settings_and_not_by_numbers_in_names():
    def made(*metrics):
        return model(metrics=metrics)

    auc = keras.metrics.AUC
    assert others(made(auc()), made(auc())) == []  # the second one is called auc_1
    assert others(made(auc()), made(auc(curve="PR"))) == ["metric auc.curve is PR (was ROC)"]
    assert others(made("mae", auc()), made("mae")) == ["metric auc is missing (AUC)"]
    assert others(made(auc(), auc()), made(auc())) == ["metric auc (2) is missing (AUC)"]


def test_metrics_that_count_sample_weights_are_told_from_those_that_do_not():
    def made(metrics, weighted_metrics):
        made = model()
        made.compile("sgd", "mse", metrics=metrics, weighted_metrics=weighted_metrics, run_eagerly=True)
        made.test_on_batch(X, Y)
        return made

    mae = keras.metrics.MeanAbsoluteError
    assert others(made(["mae"], None), made(None, ["mae"])) == ["weighted metric mae is new (mae)"]
    assert others(made(None, ["mae"]), made(None, ["mae"])) == []
    assert others(made([mae(name="a")], [mae(name="b")]), made([mae(name="a"), mae(name="b")], []))
    assert others(made(["mae"], []), made(["mae"], None)) == []


def test_sets_are_told_by_what_is_used_of_them_and_when():
    sets = {
        "": ValidationSet(data=(X, Y)),
        "b": ValidationSet(data=(X, Y), freq=[1, 3], steps=2, batch_size=4),
    }
    found = describe_sets(sets)
    assert (found["validation data.freq"], found["validation data 'b'.freq"]) == ("1", "[1, 3]")
    assert (found["validation data 'b'.steps"], found["validation data 'b'.batch_size"]) == ("2", "4")
    assert found["validation data.content"] == found["validation data 'b'.content"]
    assert describe_sets({}) == {}
    assert differences(describe_sets({"": sets[""]}), {}) == ["validation data is missing (arrays)"]


def content(data):
    return describe_data("it", data)


def number(value, dtype):
    return tf.data.Dataset.from_tensors(tf.cast(value, dtype))


def dataset(x=X, size=2):
    return tf.data.Dataset.from_tensor_slices((x, Y)).shuffle(3).batch(size).prefetch(1)


def captured(x):
    inner = dataset(x)
    return tf.data.Dataset.range(2).flat_map(lambda i: inner)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ((X, Y), (X.copy(), Y.copy()), True),
        ((X, Y), (X, Y + 1), False),
        ((X, Y), (X.astype("float64"), Y), False),
        ((X, Y), (X.reshape(3, 4), Y), False),
        ((X, Y), (X, Y, np.ones(6)), False),
        ((X, None), (X,), True),
        ((np.array(["a", "b"], object),), (np.array(["a", "c"], object),), False),
        ((np.array([object()]),), (np.array([object()]),), True),
        ((np.array([object()]),), (np.array([None]),), False),
        *((dataset(), other, False) for other in (dataset(X + 1), dataset(size=3), dataset().take(2))),
        (dataset(), dataset(), True),
        (captured(X), captured(X + 1), True),  # what a function captures is not looked for
        *((number(1.0, a), number(2.0, a), False) for a in ("bfloat16", "float8_e5m2", "float32")),
    ],
)
def test_data_is_told_apart_by_what_it_was_made_from_and_its_length(one, other, same):
    assert (content(one) == content(other)) is same


def test_data_of_python_is_told_by_its_class_and_nothing_is_drawn():
    def rows():
        raise AssertionError("drawn")
        yield X

    assert content(rows())["it"] == "generator"
    assert (content(Rows(X, Y, 2))["it"], content(Rows(X, Y, 2))["it.elements"]) == ("Rows", "3 batches")
