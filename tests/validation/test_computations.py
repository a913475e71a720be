"""Whether two models compute the same of a batch."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

from overlap_train._validation.computations import CopyRefusedError, digest_of, require_same_computation

SPEC = tf.TensorSpec([None, 3])
OUTSIDE = tf.Variable(2.0)


def model(function=None):
    made = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    if function is not None:
        made.add(keras.layers.Lambda(function))
    return made


def test_models_made_alike_have_one_digest_whatever_their_names():
    first, second = model(), model()
    assert first.name != second.name
    assert digest_of(first, SPEC) == digest_of(second, SPEC)
    require_same_computation(first, second, SPEC)


def test_another_constant_is_another_computation():
    first, second = model(lambda x: x * 2.0), model(lambda x: x * 3.0)
    assert digest_of(first, SPEC) != digest_of(second, SPEC)
    with pytest.raises(CopyRefusedError, match="computes something else"):
        require_same_computation(first, second, SPEC)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x * OUTSIDE, "reads variables outside the model"),
        (lambda x: tf.py_function(lambda y: y, [x], tf.float32), "its call"),
        (lambda x: tf.reshape(x, (5, 7, 1000))[:, :, 3:2:0], "calling it on a batch fails"),
    ],
    ids=["outside", "python", "failing"],
)
def test_what_no_copy_can_be_compared_with_is_refused(function, reason):
    made = model()
    made.call = lambda x, training=False, mask=None: function(made.layers[0](x))
    with pytest.raises(CopyRefusedError, match=reason):
        digest_of(made, SPEC)
