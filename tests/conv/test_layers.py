"""TiledConv2D beside keras.layers.Conv2D."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from overlap_train.conv import TiledConv2D

pytestmark = pytest.mark.usefixtures("native")

ARGUMENTS = [
    {"filters": 5, "kernel_size": 3},
    {"filters": 5, "kernel_size": (3, 2), "strides": 2, "padding": "same", "activation": "relu"},
    {"filters": 16, "kernel_size": 3, "padding": "same", "activation": "gelu", "use_bias": False},
]


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=str)
def test_same_arguments_weights_and_results_as_conv2d(arguments) -> None:
    images = np.random.default_rng(0).standard_normal((2, 9, 11, 4)).astype("float32")
    theirs, ours = keras.layers.Conv2D(**arguments), TiledConv2D(**arguments)
    want = theirs(images)
    ours.build(images.shape)
    ours.set_weights(theirs.get_weights())
    np.testing.assert_allclose(ours(images), want, rtol=1e-4, atol=1e-5)
    assert ours.compute_output_shape(images.shape) == theirs.compute_output_shape(images.shape)


def test_saved_and_loaded_like_conv2d(tmp_path) -> None:
    images = np.random.default_rng(0).standard_normal((2, 9, 11, 4)).astype("float32")
    model = keras.Sequential(
        [keras.Input((9, 11, 4)), TiledConv2D(6, 3, activation="relu", algorithm="winograd")]
    )
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.layers[0].algorithm == "winograd"
    np.testing.assert_array_equal(loaded(images), model(images))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"groups": 2}, "groups=2"),
        ({"dilation_rate": 2}, "dilated"),
        ({"data_format": "channels_first"}, "channels_last"),
        ({"algorithm": "fft"}, "algorithm"),
    ],
)
def test_what_only_conv2d_can_do_is_refused(arguments, message) -> None:
    with pytest.raises(ValueError, match=message):
        TiledConv2D(4, 3, **arguments)
