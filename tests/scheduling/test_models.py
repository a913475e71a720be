"""`submit(name, x)` gives what `models[name](x)` gives, whatever is a model to Keras."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train.scheduling import Device, MultiModelScheduler

kl = keras.layers
ONE = [Device("CPU:0")]
X = np.random.default_rng(0).normal(size=(3, 4)).astype("float32")


def functional(outputs, kind=keras.Model):
    inputs = keras.Input((4,))
    return kind(inputs, outputs(inputs))


class Calibrated(keras.Model):
    def call(self, inputs, training=None):
        return keras.ops.softmax(super().call(inputs, training=training) / 10.0)


class Shifted(keras.Sequential):
    def call(self, inputs, training=None, mask=None):
        return super().call(inputs) + 5.0


class Rescales(keras.Model):
    """Sees by the dtype whether an image comes as bytes."""

    def call(self, inputs):
        inputs = tf.convert_to_tensor(inputs)
        return super().call(inputs if inputs.dtype.is_floating else tf.cast(inputs, tf.float32) / 255.0)


class Adds(kl.Layer):
    def call(self, left, right=None):
        return left if right is None else left + right

    def compute_output_shape(self, left, *others):
        return left


def of_two():
    left, right = keras.Input((4,), name="left"), keras.Input((4,), name="right", optional=True)
    return keras.Model([left, right], kl.Dense(2)(Adds()(left, right)))


def of_images():
    return keras.Sequential(
        [keras.Input((None, None, 3)), kl.Conv2D(3, 5, strides=2), kl.GlobalMaxPooling2D()]
    )


def of_words():
    words = keras.Input((), dtype="string")
    return keras.Model(words, kl.StringLookup(vocabulary=["a", "b"], output_mode="one_hot")(words))


def to_words():
    numbers = keras.Input((2,), dtype="int64")
    return keras.Model(numbers, kl.StringLookup(vocabulary=["a", "b"], invert=True)(numbers))


def of_words_that_are_numbers():
    words = keras.Input((), dtype="string")
    return keras.Model(words, kl.Lambda(lambda w: tf.strings.to_number(w), output_shape=())(words))


def training_passes_on():
    """A layer that is called for training makes those behind it train too."""
    return functional(lambda x: kl.BatchNormalization()(kl.BatchNormalization()(x, training=True) * 3.0))


CASES = {
    "own-call": (lambda: functional(kl.Dense(3), Calibrated), X),
    "own-sequence": (lambda: Shifted([keras.Input((4,)), kl.Dense(3)]), X),
    "own-call-bytes": (lambda: functional(kl.Dense(3), Rescales), (X * 50).astype("uint8")),
    "trains": (training_passes_on, X),
    "one-in-a-list": (lambda: functional(lambda x: [kl.Dense(2)(x)]), X),
    "nested": (lambda: functional(lambda x: {"b": (kl.Dense(2)(x), x), "a": [kl.Dense(1)(x)]}), X),
    "a-number": (lambda: functional(lambda x: [x * keras.ops.sum(kl.Dense(2)(x)), keras.ops.max(x)]), X),
    "both-inputs": (of_two, [X, X * 2.0]),
    "one-input": (of_two, [X, None]),
    "images": (of_images, np.ones((2, 9, 11, 3), "float32")),
    "words": (of_words, np.array(["a", "z", "b"])),
    "to-words": (to_words, np.array([[0, 1], [2, 1]])),
    "numbers-in-words": (of_words_that_are_numbers, np.array(["1.5", "7"])),
}


@pytest.mark.parametrize(("make", "x"), CASES.values(), ids=CASES.keys())
def test_a_request_is_a_call(make, x):
    model = make()
    with MultiModelScheduler(devices=ONE, segments="layers", profile=True) as scheduler:
        scheduler.add("m", model)
        got = scheduler.submit("m", x).result(60)
    want = model(x if isinstance(x, list) or x.dtype.kind == "U" else tf.constant(x))
    keras.tree.assert_same_structure(got, want)
    for left, right in zip(keras.tree.flatten(got), keras.tree.flatten(want), strict=True):
        right = right.numpy()
        assert (left.dtype, left.shape) == (right.dtype, right.shape)
        if left.dtype == object:
            assert left.tolist() == right.tolist()
        else:
            np.testing.assert_allclose(left, right, atol=1e-5)


def test_a_list_that_a_subclassed_model_returns_stays_a_list():
    class Lists(keras.Model):
        def call(self, x):
            return [x * 2.0]

    with MultiModelScheduler(devices=ONE) as scheduler:
        scheduler.add("m", Lists(), input_specs=(tf.TensorSpec((None, 4)),))
        (got,) = scheduler.submit("m", X).result(60)
    np.testing.assert_allclose(got, X * 2.0)


@pytest.mark.parametrize("constant", [False, True])
def test_a_model_that_writes_in_inference_is_as_it_was_when_it_is_taken_into_service(constant):
    model = functional(lambda x: kl.Dropout(0.5)(kl.BatchNormalization()(x, training=True), training=True))
    before = [np.array(variable) for variable in model.variables]
    with MultiModelScheduler(devices=ONE, constant_weights=constant) as scheduler:
        scheduler.add("m", model)
        for variable, value in zip(model.variables, before, strict=True):
            np.testing.assert_array_equal(variable, value)
        scheduler.submit("m", X).result(60)
    assert not np.array_equal(model.variables[-1], before[-1])  # the seed has moved on, as under Keras


def test_requests_that_bring_other_inputs_are_not_batched():
    model = of_two()
    with MultiModelScheduler(devices=ONE, max_batch=6, max_active=1) as scheduler:
        scheduler.add("m", model)
        given = [[X, X], [X, None], [X, X * 3.0], [X * 2.0, None]]
        futures = [scheduler.submit("m", x) for x in given]
        for x, future in zip(given, futures, strict=True):
            np.testing.assert_allclose(future.result(60), model(x), atol=1e-5)


def test_an_output_for_the_whole_batch_is_of_its_own_request():
    model = functional(keras.ops.sum)
    with MultiModelScheduler(devices=ONE, max_batch=9, max_active=1) as scheduler:
        scheduler.add("m", model)
        futures = [scheduler.submit("m", X * n) for n in range(4)]
        for n, future in enumerate(futures):
            np.testing.assert_allclose(future.result(60), X.sum() * n, rtol=1e-4, atol=1e-4)
