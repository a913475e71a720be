"""U-Net for images of any size.

Source: O. Ronneberger, P. Fischer and T. Brox, "U-Net: Convolutional Networks for Biomedical Image
Segmentation" (MICCAI 2015), with two changes: convolutions keep the image's size, so the segmentation has it
too, and the upward path enlarges by nearest neighbours and a 3×3 convolution instead of a transposed one,
which leaves no chequerboard (A. Odena et al., "Deconvolution and Checkerboard Artifacts", Distill 2016).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras


@keras.saving.register_keras_serializable(package="overlap_train")
class CropLike(keras.layers.Layer):  # type: ignore[misc]
    """Cuts the first of two image batches to the height and width of the second.

    An odd side is halved upwards on the way down (191 gives 96), so its double is one too large on the way
    up. Sizes need not be known when the model is built.
    """

    def call(self, inputs: Sequence[Any]) -> Any:
        """[batch, height, width, channels] with the second's height and width."""
        images, reference = inputs
        shape = keras.ops.shape(reference)
        return images[:, : shape[1], : shape[2], :]

    def compute_output_shape(self, input_shape: Sequence[tuple[int | None, ...]]) -> tuple[int | None, ...]:
        """The first's shape with the second's height and width."""
        images, reference = input_shape
        return (images[0], reference[1], reference[2], images[3])


def _convolution(x: Any, width: int, name: str) -> Any:
    return keras.layers.Conv2D(
        width, 3, padding="same", activation="relu", kernel_initializer="he_normal", name=name
    )(x)


def _two_convolutions(x: Any, width: int, name: str) -> Any:
    return _convolution(_convolution(x, width, f"{name}a"), width, f"{name}b")


def unet(
    input_shape: tuple[int | None, int | None, int] = (128, 192, 3),
    classes: int = 3,
    widths: Sequence[int] = (64, 128, 256, 512, 1024),
) -> keras.Model:
    """Build an uncompiled U-Net.

    Args:
        input_shape: [height, width, channels]; height and width may be None, and of any parity.
        classes: channels of the result.
        widths: channels of each level; each level has half the resolution of the one before.

    Returns:
        A model from float32 [batch, height, width, channels] to logits [batch, height, width, classes].
    """
    inputs = keras.Input(input_shape)
    x = inputs
    skips = []
    for level, width in enumerate(widths[:-1]):
        x = _two_convolutions(x, width, f"down{level}")
        skips.append(x)
        x = keras.layers.MaxPooling2D(padding="same", name=f"pool{level}")(x)
    x = _two_convolutions(x, widths[-1], "bottom")
    for level in reversed(range(len(skips))):
        x = keras.layers.UpSampling2D(name=f"enlarge{level}")(x)
        x = CropLike(name=f"crop{level}")([x, skips[level]])
        x = _convolution(x, widths[level], f"up{level}")
        x = keras.layers.Concatenate(name=f"join{level}")([skips[level], x])
        x = _two_convolutions(x, widths[level], f"merge{level}")
    outputs = keras.layers.Conv2D(classes, 1, name="logits")(x)
    return keras.Model(inputs, outputs, name="unet")
