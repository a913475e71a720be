"""The convolution layers of U-Net, VGG16 and ResNet50, by shape. Needs no TensorFlow until a key is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from overlap_train.conv.selection import ConvKey


@dataclass(frozen=True)
class Layer:
    """One shape of a network: `count` layers of `height` × `width` × `inputs` to `outputs` channels."""

    height: int
    width: int
    inputs: int
    outputs: int
    kernel: int = 3
    stride: int = 1
    count: int = 1

    def key(self, direction: str, batch: int) -> ConvKey:
        """The convolution in one direction; forward with bias and ReLU."""
        from overlap_train.conv.selection import ConvKey

        forward = direction == "forward"
        return ConvKey(
            direction,
            "float32",
            (batch, self.height, self.width, self.inputs),
            (self.kernel, self.kernel, self.inputs, self.outputs),
            (self.stride, self.stride),
            "SAME",
            bias=forward,
            relu=forward,
        )


LAYERS: dict[str, tuple[Layer, ...]] = {
    # overlap_train.models.unet at 128×192×3, without the layers of the upward path that repeat a shape.
    "unet": (
        Layer(128, 192, 3, 64),
        Layer(128, 192, 64, 64),
        Layer(64, 96, 64, 128),
        Layer(64, 96, 128, 128),
        Layer(32, 48, 128, 256),
        Layer(32, 48, 256, 256),
        Layer(16, 24, 256, 512),
        Layer(16, 24, 512, 512),
        Layer(8, 12, 512, 1024),
        Layer(8, 12, 1024, 1024),
    ),
    "vgg16": (
        Layer(224, 224, 3, 64),
        Layer(224, 224, 64, 64),
        Layer(112, 112, 64, 128),
        Layer(112, 112, 128, 128),
        Layer(56, 56, 128, 256),
        Layer(56, 56, 256, 256, count=2),
        Layer(28, 28, 256, 512),
        Layer(28, 28, 512, 512, count=2),
        Layer(14, 14, 512, 512, count=3),
    ),
    "resnet50": (
        Layer(224, 224, 3, 64, kernel=7, stride=2),
        Layer(56, 56, 64, 64, kernel=1),
        Layer(56, 56, 64, 64, count=3),
        Layer(56, 56, 64, 256, kernel=1, count=4),
        Layer(56, 56, 256, 64, kernel=1, count=2),
        Layer(56, 56, 256, 128, kernel=1, stride=2),
        Layer(28, 28, 128, 128, count=4),
        Layer(28, 28, 128, 512, kernel=1, count=4),
        Layer(28, 28, 512, 256, kernel=1, stride=2),
        Layer(14, 14, 256, 256, count=6),
        Layer(14, 14, 256, 1024, kernel=1, count=6),
        Layer(7, 7, 512, 512, count=3),
        Layer(7, 7, 512, 2048, kernel=1, count=3),
    ),
}
