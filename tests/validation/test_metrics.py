"""Which metrics add up over the parts of a set, and over joined batches: the same numbers."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from overlap_train import Trainer, ValidationPolicy
from overlap_train._data.validation_data import ValidationSource, make_batches
from overlap_train._keras.data import recognize
from overlap_train._validation.evaluation import unmergeable_metrics
from overlap_train._validation.sets import rows_together
from tests import pools
from tests.networks import CLASSES, FEATURES, arrays, assert_same_history, crossentropy
from tests.pools import sequential

BINARY = ["BinaryAccuracy", "AUC", "Precision", "Recall", "FalsePositives", "BinaryCrossentropy", "Hinge"]
REGRESSION = ["MeanSquaredError", "RootMeanSquaredError", "MeanAbsoluteError", "CosineSimilarity", "R2Score"]

FITTED = {
    "FBetaScore": lambda: keras.metrics.FBetaScore(),
    "F1Score": lambda: keras.metrics.F1Score(),
    "BinaryIoU": lambda: keras.metrics.BinaryIoU(),
    "SpecificityAtSensitivity": lambda: keras.metrics.SpecificityAtSensitivity(0.5),
    "a function": lambda: keras.metrics.MeanMetricWrapper(lambda y, p: keras.ops.abs(y - p), name="mine"),
}


def compiled(metrics):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, activation="sigmoid")])
    model.compile("sgd", "binary_crossentropy", metrics=metrics)
    model.evaluate(np.zeros((4, 3), "f"), np.array([[0.0], [1.0], [0.0], [1.0]]), verbose=0)
    return model


@pytest.mark.by_default("<lambda>0")
@pytest.mark.parametrize(
    "build", [*(getattr(keras.metrics, n) for n in BINARY + REGRESSION), *FITTED.values()]
)
def test_the_states_of_keras_metrics_add_up(build):
    """Not believed but tried: two halves added give the state of the whole."""
    rng = np.random.default_rng(0)
    y, p = rng.integers(0, 2, (40, 1)).astype("f"), rng.random((40, 1)).astype("f")

    def state(rows):
        metric = build()
        metric.update_state(y[rows], p[rows])
        return [np.asarray(v) for v in metric.variables]

    whole, first, second = state(slice(None)), state(slice(13)), state(slice(13, None))
    for total, a, b in zip(whole, first, second, strict=True):
        np.testing.assert_allclose(a + b, total, rtol=1e-5)
    assert unmergeable_metrics(compiled([build()])) == []


def test_names_of_compile_and_per_output_metrics_are_opened():
    assert unmergeable_metrics(compiled(["accuracy", "mse", keras.metrics.AUC(name="auc")])) == []


class Largest(keras.metrics.Metric):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.value = self.add_weight(name="value", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.value.assign(keras.ops.maximum(self.value, keras.ops.max(y_pred)))

    def result(self):
        return self.value + 0.0


class HalvingMean(keras.metrics.Mean):
    def update_state(self, values, sample_weight=None):
        super().update_state(values, sample_weight)
        self.total.assign(self.total / 2)


class FromOne(keras.metrics.Mean):
    def reset_state(self):
        self.total.assign(1.0)
        self.count.assign(0.0)


class ScaledResult(keras.metrics.MeanSquaredError):
    def result(self):
        return 100 * super().result()


def test_metrics_of_unknown_state_are_named_and_own_results_are_none_such():
    """What updates or resets in its own way, in its class or on the instance."""
    offset = keras.metrics.Mean(name="offset")
    offset.reset_state = lambda: offset.total.assign(1.0)
    model = compiled([Largest(name="largest"), ScaledResult(name="scaled"), "accuracy"])
    model.extra = [HalvingMean(name="halving"), FromOne(name="from_one"), offset]
    assert sorted(unmergeable_metrics(model)) == ["from_one", "halving", "largest", "offset"]


def test_asking_does_not_touch_the_metrics():
    model = compiled(["mse"])
    before = [keras.ops.convert_to_numpy(v) for v in model.metrics_variables]
    unmergeable_metrics(model)
    assert any(np.any(value) for value in before)
    for value, variable in zip(before, model.metrics_variables, strict=True):
        np.testing.assert_array_equal(value, variable)


ROWS = 3001


def with_loss(loss, metrics=("accuracy",), *, outputs=CLASSES, first=(), build=True, **arguments):
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((FEATURES,)), *first, keras.layers.Dense(outputs)])
    model.compile("sgd", loss, metrics=list(metrics), **arguments)
    if build:
        x, y = arrays(8)
        y = y[:, None].astype("float32") if outputs == 1 else y
        model.evaluate(
            x, y if outputs == 1 or "sparse" in str(loss).lower() else np.eye(outputs)[y], verbose=0
        )
    return model


def own_metric(y_true, y_pred):
    return keras.ops.mean(y_pred)


class OwnTestStep(keras.Sequential):
    def test_step(self, data):
        return super().test_step(data)


def own_test_step():
    model = OwnTestStep([keras.Input((FEATURES,)), keras.layers.Dense(CLASSES)])
    model.compile("sgd", crossentropy())
    model.evaluate(*arrays(8), verbose=0)
    return model


def masked():
    model = keras.Sequential(
        [keras.Input((5,)), keras.layers.Embedding(9, 4, mask_zero=True), keras.layers.GRU(2)]
    )
    model.compile("sgd", "mse")
    model.evaluate(np.ones((8, 5)), np.ones((8, 2)), verbose=0)
    return model


JOINED = {
    "average of a stock loss": lambda: with_loss(crossentropy()),
    "by name": lambda: with_loss("sparse_categorical_crossentropy"),
    "normalized": lambda: with_loss(crossentropy(), first=[keras.layers.BatchNormalization()]),
    "confusion matrix": lambda: with_loss(
        "binary_crossentropy", [keras.metrics.AUC(from_logits=True)], outputs=1
    ),
    "regression": lambda: with_loss("mse", ["mae", keras.metrics.MeanSquaredError()], outputs=1),
}

ALONE = {
    "a sum": lambda: with_loss(keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")),
    "an ignored class": lambda: with_loss(
        keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
    ),
    "a loss of whole batches": lambda: with_loss(keras.losses.Dice()),
    "a user's loss": lambda: with_loss(lambda y, p: keras.ops.mean((y - p) ** 2), outputs=1),
    "a user's metric": lambda: with_loss(crossentropy(), [own_metric]),
    "a root": lambda: with_loss("mse", [keras.metrics.RootMeanSquaredError()], outputs=1),
    "a layer that is not known": lambda: with_loss(crossentropy(), first=[keras.layers.Lambda(lambda x: x)]),
    "metrics that are not built": lambda: with_loss(crossentropy(), build=False),
    "a user's test_step": own_test_step,
    "a mask": masked,
}


def given(model):
    """Arrays with labels as the losses above take them."""
    x, y = arrays(8)
    return x, y if model.output_shape[-1] == CLASSES else y[:, None]


@pytest.mark.by_default("a layer that is not known")
@pytest.mark.parametrize("name", [*JOINED, *ALONE])
def test_batches_are_joined_only_where_all_adds_up_over_rows(name):
    model = {**JOINED, **ALONE}[name]()
    most = 1024 if name in JOINED else 0
    assert rows_together(model, given(model)) == most
    assert rows_together(model, (*given(model), np.ones(8))) == most


@pytest.mark.cpu_only("batches are joined where operations need not repeat")
def test_large_networks_are_left_alone():
    model = with_loss(crossentropy(), first=[keras.layers.Dense(4000), keras.layers.Dense(2000)])
    assert rows_together(model, given(model)) == 1


def regression(*layers, metrics=()):
    model = keras.Sequential([keras.Input((FEATURES,)), *layers, keras.layers.Dense(3)])
    model.compile("sgd", "mse", metrics=list(metrics))
    return model


def stateful():
    model = keras.Sequential([keras.Input(batch_shape=(16, FEATURES, 1)), keras.layers.GRU(3, stateful=True)])
    model.compile("sgd", "mse")
    return model


def spread(activations):
    return keras.ops.sqrt(keras.ops.sum(activations**2))


def minus_mean(x):
    return x - keras.ops.mean(x, axis=0)


RNG = np.random.default_rng(5)

BATCHWISE = {  # a model, and shapes of labels and weights for each row
    "labels of another rank": (regression, (1, 3), None),
    "a label for each row and batches of one": (regression, (), None),
    "weights of another rank": (regression, (3,), (1, 1)),
    "a state for each row": (stateful, (3,), None),
    **{
        name: (build, (3,), None)
        for name, build in {
            "a metric along the rows": lambda: regression(metrics=[keras.metrics.CosineSimilarity(axis=0)]),
            "an activity regulariser": lambda: regression(keras.layers.Dense(4, activity_regularizer=spread)),
            "an activation of the user's": lambda: regression(keras.layers.Dense(4, activation=minus_mean)),
            "a softmax along the rows": lambda: regression(keras.layers.Softmax(axis=-2)),
        }.items()
    },
}


@pytest.mark.by_default("a softmax along the rows")
@pytest.mark.parametrize("name", BATCHWISE)
def test_numbers_that_depend_on_the_batch_are_those_of_the_users_batches(name):
    build, label_shape, weight_shape = BATCHWISE[name]
    rows, batch = (200, 1) if "of one" in name else (1504, 16)
    x = RNG.random((rows, FEATURES), "float32")
    y = RNG.random((rows, *label_shape), "float32")
    weights = None if weight_shape is None else RNG.random((rows, *weight_shape), "float32")
    arguments = dict(sample_weight=weights, batch_size=batch, verbose=0, return_dict=True)
    keras.utils.set_random_seed(3)
    wanted = build().evaluate(x, y, **arguments)
    keras.utils.set_random_seed(3)
    actual = Trainer(build()).evaluate(x, y, **arguments)
    assert actual.keys() == wanted.keys()
    for key in wanted:
        np.testing.assert_allclose(actual[key], wanted[key], rtol=1e-5)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("rows", "weighted"), [(1505, False), (1505, True), (1504, True), (100, False), (100, True)]
)
@pytest.mark.by_default("1505-True")
def test_the_history_is_that_of_the_users_batches(rows, weighted):
    x, y = arrays(96)
    validation = arrays(rows, 1)
    if weighted:
        validation = (*validation, np.linspace(0, 2, rows, dtype="float32"))
    arguments = dict(batch_size=32, epochs=2, validation_data=validation, validation_batch_size=16, verbose=0)
    expected = sequential("sgd").fit(x, y, **arguments).history
    pools.take_back()
    model = sequential("sgd")
    trainer = Trainer(model, validation=ValidationPolicy(workers=3))
    assert_same_history(trainer.fit(x, y, **arguments).history, expected)
    wanted = model.evaluate(*validation[:2], batch_size=16, verbose=0)
    np.testing.assert_allclose(trainer.evaluate(*validation[:2], batch_size=16, verbose=0), wanted, rtol=1e-5)


def make(*, batch_size=16, steps=None, **arguments):
    x, y = arrays(ROWS)
    given = ValidationSource(lambda: recognize(x, y, batch_size=batch_size, steps=steps))
    return make_batches(given, steps=steps, cache_bytes=0, **arguments)


def test_enough_batches_are_left_to_share_and_steps_count_the_users():
    assert make(most_rows=lambda arrays: 0).num_batches == 188
    assert make(most_rows=lambda arrays: 1024).num_batches == 38  # five together
    assert make(most_rows=lambda arrays: 40).num_batches == 94
    assert make(most_rows=lambda arrays: 1024, batch_size=200).num_batches == 16
    assert make(most_rows=lambda arrays: 1024, steps=7).num_batches == 7
