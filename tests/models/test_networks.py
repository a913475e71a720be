"""The networks: one logit for each class, the sizes measured or published, their input and their files."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train.conv import accelerate, is_available
from overlap_train.models.inception_v1 import LocalResponseNormalization, inception_v1
from overlap_train.models.mlp import mlp
from overlap_train.models.mnist_cnn import mnist_cnn
from overlap_train.models.resnet import resnet
from overlap_train.models.text_lstm import text_lstm
from overlap_train.models.unet import unet

PERCEPTRON = {"features": 5, "num_classes": 3}


@pytest.mark.parametrize(
    ("network", "x", "classes", "weights"),
    [
        (lambda: mlp(hidden=(4,), **PERCEPTRON), np.zeros((3, 5)), 3, 5 * 4 + 4 + 4 * 3 + 3),
        (mnist_cnn, np.zeros((3, 28, 28, 1)), 10, 34_826),
        (
            lambda: resnet(input_shape=(32, 32, 3), widths=(8, 16), num_classes=2),
            *(np.zeros((3, 32, 32, 3)), 2, None),
        ),
        (lambda: text_lstm(vocabulary_size=9, sequence_length=6), np.ones((3, 6), "int32"), 2, None),
    ],
    ids=["mlp", "cnn", "resnet", "lstm"],
)
def test_logits_have_one_column_for_each_class(network, x, classes, weights):
    network = network()
    assert network(x.astype("float32")).shape == (3, classes)
    assert weights in (None, network.count_params())


def test_pixels_are_scaled_inside_the_model_exactly_once():
    pixels = np.random.default_rng(0).integers(0, 256, (2, 28, 28, 1), np.uint8)
    keras.utils.set_random_seed(0)
    inside = mnist_cnn(from_uint8=True)(pixels)
    keras.utils.set_random_seed(0)
    outside = mnist_cnn()(pixels.astype(np.float32) / 255)
    np.testing.assert_allclose(inside, outside, rtol=1e-4, atol=1e-5)


def test_padding_does_not_change_what_the_text_says():
    network = text_lstm(vocabulary_size=9, sequence_length=6)
    short = np.array([[1, 2, 3, 0, 0, 0]], np.int32)
    unpadded = text_lstm(vocabulary_size=9, sequence_length=3)
    unpadded.set_weights(network.get_weights())
    np.testing.assert_allclose(network(short), unpadded(short[:, :3]), rtol=1e-5, atol=1e-6)


@pytest.mark.nightly
def test_network_has_the_published_size_and_gives_a_distribution():
    model = inception_v1()
    # What Caffe's deployed GoogLeNet has: 5,973,552 in its 57 convolutions and 1,025,000 in the classifier.
    assert model.count_params() == 6_998_552
    assert sum(isinstance(layer, keras.layers.Conv2D) for layer in model.layers) == 57
    shapes = {layer.name: layer.output.shape[1:] for layer in model.layers}
    assert shapes["pool2"] == (28, 28, 192)
    assert shapes["3b"] == (28, 28, 480)
    assert shapes["4e"] == (14, 14, 832)
    assert shapes["5b"] == (7, 7, 1024)
    probabilities = model(tf.random.stateless_normal((2, 224, 224, 3), seed=[0, 1])).numpy()
    assert probabilities.shape == (2, 1000)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, rtol=1e-4)


def test_normalisation_equals_tensorflows():
    x = tf.random.stateless_normal((2, 5, 5, 9), seed=[1, 2]) * 100
    expected = tf.nn.local_response_normalization(x, depth_radius=2, bias=1.0, alpha=1e-4 / 5, beta=0.75)
    np.testing.assert_allclose(LocalResponseNormalization()(x), expected, rtol=1e-5)
    layer = LocalResponseNormalization(depth=3, alpha=0.5, beta=0.25)
    again = LocalResponseNormalization.from_config(layer.get_config())
    assert (again.depth, again.alpha, again.beta) == (3, 0.5, 0.25)


@pytest.mark.by_default("size1")
@pytest.mark.parametrize("size", [(128, 191), (33, 47), (16, 16), (1, 5)])
def test_output_has_the_size_of_the_image(size) -> None:
    for known in (size, (None, None)):
        model = unet((*known, 3), classes=2, widths=(4, 4, 4, 4))
        assert model.output_shape[1:3] == known
        assert model(np.zeros((1, *size, 3), "float32")).shape == (1, *size, 2)


def discs(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Noisy images [count, 33, 47, 3] of one disc each, and which pixels are its own [count, 33, 47]."""
    generator = np.random.default_rng(0)
    rows, columns = np.mgrid[:33, :47]
    centres = generator.uniform((8, 8), (25, 39), (count, 2))[:, :, None, None]
    masks = (rows - centres[:, 0]) ** 2 + (columns - centres[:, 1]) ** 2 < generator.uniform(
        20, 60, (count, 1, 1)
    )
    images = masks[..., None] + generator.normal(0, 1.0, (count, 33, 47, 3))
    return images.astype("float32"), masks.astype("int32")


@pytest.mark.nightly
def test_fifty_steps_on_ours_and_on_stock_end_alike() -> None:
    if not is_available():
        pytest.skip("no native convolution here")
    images, masks = discs(40)
    ends = []
    for ours in (False, True):
        keras.utils.set_random_seed(5)
        model = unet((33, 47, 3), classes=2, widths=(16, 32, 32))
        if ours:
            accelerate(model, verbose=0)
        model.compile(
            # At 0.02, weights 1e-6 apart end with losses 8e-3 apart, on TensorFlow alone; here not.
            keras.optimizers.SGD(0.005),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=[keras.metrics.MeanIoU(2, sparse_y_pred=False, name="iou")],
        )
        model.fit(images, masks, batch_size=4, epochs=5, shuffle=False, verbose=0)
        ends.append(model.evaluate(images, masks, verbose=0, return_dict=True))
    print(ends)  # shown by pytest -rP
    assert ends[0]["loss"] < 0.5
    assert ends[1]["loss"] == pytest.approx(ends[0]["loss"], rel=1e-3)
    assert ends[1]["iou"] == pytest.approx(ends[0]["iou"], rel=2e-3)


def test_model_is_saved_and_loaded(tmp_path) -> None:
    model = unet((None, None, 3), widths=(4, 6))
    model.save(tmp_path / "unet.keras")
    images = np.random.default_rng(0).random((2, 9, 7, 3), "float32")
    np.testing.assert_array_equal(keras.saving.load_model(tmp_path / "unet.keras")(images), model(images))
