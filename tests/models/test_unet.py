"""U-Net: sizes of every parity, and training on our convolution as on TensorFlow's."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from overlap_train.conv import accelerate, is_available
from overlap_train.models.unet import unet


@pytest.mark.parametrize("size", [(128, 191), (33, 47), (16, 16), (1, 5)])
def test_output_has_the_size_of_the_image(size) -> None:
    for known in (size, (None, None)):
        model = unet((*known, 3), classes=2, widths=(4, 4, 4, 4))
        assert model.output_shape[1:3] == known
        assert model(np.zeros((1, *size, 3), "float32")).shape == (1, *size, 2)


def test_model_is_saved_and_loaded(tmp_path) -> None:
    model = unet((None, None, 3), widths=(4, 6))
    model.save(tmp_path / "unet.keras")
    images = np.random.default_rng(0).random((2, 9, 7, 3), "float32")
    np.testing.assert_array_equal(keras.saving.load_model(tmp_path / "unet.keras")(images), model(images))


def test_no_level_is_refused() -> None:
    with pytest.raises(ValueError, match="widths must be a sequence of one or more sizes"):
        unet(widths=())


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
