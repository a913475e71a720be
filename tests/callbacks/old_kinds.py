"""Values that a callback of Keras can remember are told from those that were made by hand."""

from __future__ import annotations

import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train._callbacks.state import unfit

MODEL = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, name="d")])
WEIGHTS = MODEL.get_weights()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("wait", 3),
        ("wait", np.int64(3)),
        ("_last_batch_seen", None),
        ("_last_batch_seen", 7),
        ("append", False),
        ("append", np.bool_(True)),
        ("best", 0.5),
        ("best", None),
        ("best", math.inf),
        ("best", math.nan),
        ("best", np.float64(0.5)),
        ("best", 2**40),
        ("best", True),
        ("best", np.array([[0.5]])),
        ("best", tf.constant([0.5])),
        ("cooldown_counter", 2.5),
        ("epoch", []),
        ("epoch", [0, 1, np.int32(2)]),
        ("history", {}),
        ("history", {"loss": [1.0], 1: [0.5], None: []}),  # names that a callback has put into the logs
        ("keys", None),
        ("keys", ["loss", "accuracy"]),
        ("best_weights", None),
        ("best_weights", WEIGHTS),
    ],
)
def test_values_of_keras_fit(name, value):
    assert unfit(name, value, MODEL) is None


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("wait", True, "is of type bool, where a whole number belongs"),
        ("wait", 1.0, "is of type float, where a whole number belongs"),
        ("_last_batch_seen", "3", "is of type str, where a whole number or None belongs"),
        ("_ema_weights_in_model", 1, "is of type int, where True or False belongs"),
        ("best", 2**63, "is of type int, where a number belongs"),
        ("best", [0.5], "is of type list, where a number belongs"),
        ("cooldown_counter", "2", "is of type str, where a number belongs"),
        ("cooldown_counter", None, "is of type NoneType, where a number belongs"),
        ("best", 1e39, "is of type float, where a number belongs"),
        ("best", np.zeros(2), "is of type ndarray, where a number belongs"),
        ("best", np.array("a"), "is of type ndarray, where a number belongs"),
        ("epoch", (0, 1), "is of type tuple, where a list of epochs belongs"),
        ("epoch", [True], "is of type list, where a list of epochs belongs"),
        ("history", {"loss": 1.0}, "is of type dict, where a dict of lists belongs"),
        ("history", [("loss", [])], "is of type list, where a dict of lists belongs"),
        ("keys", "loss", "is of type str, where a list of names belongs"),
    ],
)
def test_others_do_not_and_are_named_by_type(name, value, reason):
    assert unfit(name, value, MODEL) == reason


@pytest.mark.parametrize(
    ("value", "fits"),
    [
        (WEIGHTS[:1], False),
        (WEIGHTS[::-1], False),
        ([w.astype("float64") for w in WEIGHTS], False),
        (tuple(WEIGHTS), False),
        ([w.tolist() for w in WEIGHTS], False),
        ([w + 1 for w in WEIGHTS], True),
    ],
)
def test_weights_have_the_shapes_and_types_of_the_models(value, fits):
    assert (unfit("best_weights", value, MODEL) is None) is fits


def test_a_weight_without_axes_is_a_scalar():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Normalization(), keras.layers.Dense(1)])
    weights = model.get_weights()
    assert any(isinstance(weight, np.generic) for weight in weights)
    assert unfit("best_weights", weights, model) is None
    assert unfit("best_weights", [np.float64(weight.flat[0]) for weight in weights], model) is not None


def test_without_a_model_any_arrays_may_be_its_weights():
    assert unfit("best_weights", [np.zeros(9)], None) is None
    assert unfit("best_weights", [[0.0]], None) == "does not hold the model's weights"
