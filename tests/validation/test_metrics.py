"""Which metrics add up over the parts of a set."""

import keras
import numpy as np
import pytest

from overlap_train._validation.evaluation import unmergeable_metrics
from tests.networks import Largest

BINARY = ["BinaryAccuracy", "AUC", "Precision", "Recall", "FalsePositives", "BinaryCrossentropy", "Hinge"]
REGRESSION = ["MeanSquaredError", "RootMeanSquaredError", "MeanAbsoluteError", "CosineSimilarity", "R2Score"]

OTHERS = ["FBetaScore", "F1Score", "BinaryIoU"]
FITTED = [
    lambda: keras.metrics.SpecificityAtSensitivity(0.5),
    lambda: keras.metrics.MeanMetricWrapper(lambda y, p: keras.ops.abs(y - p), name="mine"),
]


def compiled(metrics):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, activation="sigmoid")])
    model.compile("sgd", "binary_crossentropy", metrics=metrics)
    model.evaluate(np.zeros((4, 3), "f"), np.array([[0.0], [1.0], [0.0], [1.0]]), verbose=0)
    return model


@pytest.mark.by_default("<lambda>0")
@pytest.mark.parametrize(
    "build", [*(getattr(keras.metrics, n) for n in BINARY + REGRESSION + OTHERS), *FITTED]
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
    model = compiled([Largest(), ScaledResult(name="scaled"), "accuracy"])
    model.extra = [HalvingMean(name="halving"), FromOne(name="from_one"), offset]
    assert sorted(unmergeable_metrics(model)) == ["from_one", "halving", "largest", "offset"]
