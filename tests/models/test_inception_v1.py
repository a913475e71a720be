"""GoogLeNet's shape, size and normalisation."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train.models.inception_v1 import LocalResponseNormalization, inception_v1


@pytest.fixture(scope="module")
def model():
    return inception_v1(seed=3)


def test_network_has_the_published_size(model):
    # What Caffe's deployed GoogLeNet has: 5,973,552 in its 57 convolutions and 1,025,000 in the classifier.
    assert model.count_params() == 6_998_552
    assert sum(isinstance(layer, keras.layers.Conv2D) for layer in model.layers) == 57
    shapes = {layer.name: layer.output.shape[1:] for layer in model.layers}
    assert shapes["pool2"] == (28, 28, 192)
    assert shapes["3b"] == (28, 28, 480)
    assert shapes["4e"] == (14, 14, 832)
    assert shapes["5b"] == (7, 7, 1024)


def test_output_is_a_distribution(model):
    probabilities = model(tf.random.stateless_normal((2, 224, 224, 3), seed=[0, 1])).numpy()
    assert probabilities.shape == (2, 1000)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, rtol=1e-4)


def test_weights_follow_the_seed_and_a_file(tmp_path):
    small = {"input_shape": (32, 32, 3), "num_classes": 4}
    first, same, other = (inception_v1(seed=seed, **small) for seed in (1, 1, 2))
    for mine, yours in zip(first.weights, same.weights, strict=True):
        np.testing.assert_array_equal(mine.numpy(), yours.numpy())
    assert any(
        (mine.numpy() != yours.numpy()).any()
        for mine, yours in zip(first.weights, other.weights, strict=True)
    )
    first.save_weights(tmp_path / "x.weights.h5")
    loaded = inception_v1(seed=2, weights=tmp_path / "x.weights.h5", **small)
    np.testing.assert_array_equal(
        loaded.get_layer("5b_3x3").kernel.numpy(), first.get_layer("5b_3x3").kernel.numpy()
    )


def test_normalisation_equals_tensorflows():
    x = tf.random.stateless_normal((2, 5, 5, 9), seed=[1, 2]) * 100
    expected = tf.nn.local_response_normalization(x, depth_radius=2, bias=1.0, alpha=1e-4 / 5, beta=0.75)
    np.testing.assert_allclose(LocalResponseNormalization()(x), expected, rtol=1e-5)


def test_normalisation_is_saved_with_its_settings():
    layer = LocalResponseNormalization(depth=3, alpha=0.5, beta=0.25)
    again = LocalResponseNormalization.from_config(layer.get_config())
    assert (again.depth, again.alpha, again.beta) == (3, 0.5, 0.25)


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="at least 32"):
        inception_v1(input_shape=(16, 224, 3))
    with pytest.raises(ValueError, match="odd"):
        LocalResponseNormalization(depth=4)
