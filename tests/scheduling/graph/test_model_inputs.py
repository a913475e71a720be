"""What a user passes becomes the arrays that a model takes, or is refused by name."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train.scheduling.models import ModelInputs, inputs_of

ONES = np.ones((2, 4), "float32")
RAGGED = tf.ragged.constant([[1.0] * 4, [1.0]])


class OwnCall(keras.Model):
    def call(self, inputs):
        return super().call(inputs)


def inputs(nest=list, kind=keras.Model, **options):
    left, right = keras.Input((4,), name="left"), keras.Input((4,), name="right", **options)
    pair = {"right": right, "left": left} if nest is dict else nest((left, right))
    return inputs_of(kind(pair, [left, right]), (), "m")


@pytest.mark.parametrize(
    ("nest", "x"),
    [
        (list, [ONES, ONES * 2]),
        (tuple, [ONES, ONES * 2]),
        (list, {"right": ONES * 2, "left": ONES, "other": 1}),
        (dict, {"right": ONES * 2, "left": ONES}),
        (list, [tf.constant(ONES), keras.Variable(ONES * 2)]),
        (list, [tf.sparse.from_dense(ONES), ONES * 2]),
        (list, [ONES.astype("float64"), ONES.astype("uint8") * 2]),
    ],
    ids=["list", "tuple", "by-name", "dict", "tensors", "sparse", "dtypes"],
)
def test_inputs_come_in_the_models_order_and_dtype(nest, x):
    left, right = inputs(nest).flatten("m", x)
    assert left.dtype == right.dtype == np.float32
    np.testing.assert_array_equal(left, ONES)
    np.testing.assert_array_equal(right, ONES * 2)


@pytest.mark.parametrize(
    ("nest", "x", "error", "said"),
    [
        (list, [ONES], ValueError, "takes 2 inputs, got 1"),
        (list, {"left": ONES}, ValueError, r"takes inputs named \['left', 'right'\], got \['left'\]"),
        (dict, [ONES, ONES], ValueError, r"takes a dict with \['right', 'left'\]"),
        (list, [ONES, None], ValueError, "the input 'right' is not optional"),
        (list, [ONES, ONES[:, :3]], ValueError, r"'right' takes \(None, 4\), got the shape \(2, 3\)"),
        (list, [ONES, ONES[:1]], ValueError, "one batch dimension"),
        (list, [ONES, np.full((2, 4), "1")], TypeError, "'right' takes float32, got <U1"),
        (list, [ONES, ONES * 1j], TypeError, "'right' takes float32, got complex64"),
        (list, ONES.tolist() * 2, ValueError, "a list is one value for each input: pass an array"),
        (list, [ONES, np.full((2, 4), object())], TypeError, "'right' takes an array, got "),
        (list, [ONES, RAGGED], TypeError, "'right' takes an array, got "),
    ],
    ids=[
        "count",
        "name",
        "order",
        "none",
        "shape",
        "batch",
        "text",
        "complex",
        "plain list",
        "objects",
        "ragged",
    ],
)
def test_what_does_not_fit_is_refused_by_name(nest, x, error, said):
    with pytest.raises(error, match=said):
        inputs(nest).flatten("m", x)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (keras.Sequential([keras.layers.Dense(2)]), "a Sequential model that is not built .* keras.Input"),
        (OwnCall(), r"a subclassed model .* input_specs="),
    ],
)
def test_a_model_that_does_not_say_what_it_reads_is_told_how(model, said):
    with pytest.raises(ValueError, match=said):
        inputs_of(model, (), "m")


def test_an_optional_input_may_be_left_out():
    taken = inputs(optional=True)
    assert taken.varies
    assert taken.flatten("m", [ONES, None])[1] is None
    with pytest.raises(ValueError, match="'left' is not optional"):
        taken.flatten("m", [None, ONES])


def test_a_last_dimension_of_one_may_be_left_out_or_added_as_under_keras():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(2)])
    taken = inputs_of(model, (), "m")
    for x in (np.ones(3), np.ones((3, 1)), np.ones((3, 1, 1))):
        assert taken.flatten("m", x)[0].shape == (3, 1)
        assert model(x).shape == (3, 2)


def test_text_is_taken_where_text_is_wanted():
    taken = ModelInputs((tf.TensorSpec((None,), tf.string),))
    for x in (["a", "b"], np.array(["a", "b"]), tf.constant(["a", "b"])):
        assert tf.constant(taken.flatten("m", np.asarray(x))[0]).numpy().tolist() == [b"a", b"b"]
    with pytest.raises(TypeError, match="takes string, got float32"):
        taken.flatten("m", ONES[:, 0])


@pytest.mark.parametrize(("given", "kept"), [("uint8", "uint8"), ("bool", "bool"), ("float64", "float32")])
def test_code_of_the_users_own_sees_what_kind_of_numbers_came(given, kept):
    taken = inputs(kind=OwnCall)
    assert taken.varies
    assert [a.dtype for a in taken.flatten("m", [ONES.astype(given), ONES])] == [kept, "float32"]


def test_a_model_of_sparse_tensors_is_refused():
    sparse = keras.Input((4,), sparse=True, name="counts")
    with pytest.raises(ValueError, match="the input 'counts' is sparse or ragged"):
        inputs_of(keras.Model(sparse, keras.layers.Dense(1)(sparse)), (), "m")
