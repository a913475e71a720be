"""`submit(name, x)` gives what `models[name](x)` gives: kinds of models, networks under every policy."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train.scheduling import POLICIES, Device, MultiModelScheduler, Platform, Transfer

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


# One CPU under two names: to TensorFlow the same, to the scheduler a CPU and a "GPU".
TWO = Platform(
    (Device("CPU:0", "cpu", slots=2), Device("cpu:0", "gpu")),
    {("CPU:0", "cpu:0"): Transfer(1e-5), ("cpu:0", "CPU:0"): Transfer(1e-5)},
)
PAPERS = ("AlexNet", "VGG16", "ResNet152", "DenseNet201")
TEN_MORE = (
    "MobileNetV2",
    "EfficientNetB0",
    "NASNetMobile",
    "Xception",
    "InceptionV3",
    "InceptionResNetV2",
    "ConvNeXtTiny",
    "ResNet50V2",
    "MobileNetV3Small",
    "VGG19",
)
# The smallest images that these take, and for the paper's what all four take.
SIZES = dict.fromkeys(PAPERS, 64) | {
    "NASNetMobile": 64,
    "Xception": 75,
    "InceptionV3": 80,
    "InceptionResNetV2": 80,
}


def network(name):
    from overlap_train.models.alexnet import alexnet

    keras.utils.set_random_seed(0)
    size = SIZES.get(name, 32)
    if name == "AlexNet":
        return alexnet((size, size, 3), 10)
    return getattr(keras.applications, name)(weights=None, input_shape=(size, size, 3), classes=10)


def check(name, policies):
    """The oracle gets eight segments, the others forty."""
    model = network(name)
    # Those that rescale by themselves expect bytes' range.
    high = 255 if name.startswith(("EfficientNet", "MobileNetV3", "ConvNeXt")) else 1
    x = np.random.default_rng(0).random((2, *model.input_shape[1:]), "float32") * np.float32(high)
    want = model(x, training=False).numpy()
    for policy in sorted(policies):
        options = {"policy": policy, "segments": 8 if policy == "oracle" else 40, "profile": False}
        with MultiModelScheduler({name: model}, devices=TWO, **options) as scheduler:
            for future in [scheduler.submit(name, x) for _ in range(2)]:
                np.testing.assert_allclose(future.result(300), want, atol=1e-5, err_msg=policy)


@pytest.mark.parametrize(
    ("name", "policies"), [("AlexNet", POLICIES), ("MobileNetV3Small", ("paper", "earliest_finish"))]
)
@pytest.mark.by_default("AlexNet-policies0")
def test_a_network_split_equals_its_whole(name, policies):
    """A chain under every policy, and a graph with branches; all networks under all policies are nightly."""
    check(name, policies)


@pytest.mark.nightly
@pytest.mark.parametrize("name", [*PAPERS, *TEN_MORE])
@pytest.mark.timeout(1800)
def test_a_network_split_equals_its_whole_under_every_policy(name):
    check(name, POLICIES)


@pytest.mark.parametrize("name", ["AlexNet", "VGG16", "ResNet50V2", "InceptionV3"])
@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_a_network_in_pieces_equals_its_whole_under_every_policy(name):
    """Images large enough that there is something to cut; the oracle takes no graph of so many layers."""
    from overlap_train.models.alexnet import alexnet

    keras.utils.set_random_seed(0)
    shape = (128, 128, 3)
    if name == "AlexNet":
        model = alexnet(shape, 10)
    else:
        model = getattr(keras.applications, name)(weights=None, input_shape=shape, classes=10)
    x = np.random.default_rng(0).random((1, *shape), "float32")
    want = model(x, training=False).numpy()
    for policy in sorted(set(POLICIES) - {"oracle"}):
        options = {"policy": policy, "profile": False, "cut": 3}
        with MultiModelScheduler({name: model}, devices=TWO, **options) as scheduler:
            assert scheduler.graph(name).joins
            for future in [scheduler.submit(name, x) for _ in range(4)]:
                np.testing.assert_allclose(future.result(300), want, atol=1e-5, err_msg=policy)
