"""The shapes that the kernels are checked and timed on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from scripts.bench.conv_shapes import LAYERS, Layer
from scripts.gpu.cuda_library import Shape

__all__ = ["LAYERS", "Case", "cases", "layer_shape", "shrunk"]


class Case(NamedTuple):
    """The arguments of MakeCase in reference.h, the CPU kernels' test."""

    batch: int
    height: int
    width: int
    inputs: int
    outputs: int
    kernel: int
    stride: int
    same: bool

    @property
    def shape(self) -> Shape:
        image = (self.batch, self.height, self.width, self.inputs)
        return Shape.of(image, self.outputs, kernel=self.kernel, stride=self.stride, same=self.same)


# Those of kernels_test.cc beyond its grid.
_SINGLE = (
    Case(1, 9, 191, 3, 64, 3, 1, True),
    Case(2, 6, 75, 4, 70, 3, 1, True),
    Case(2, 6, 75, 2, 7, 3, 1, False),
    Case(3, 1, 1, 3, 5, 3, 1, True),
    Case(2, 1, 37, 2, 20, 3, 1, True),
    Case(2, 37, 1, 4, 70, 3, 1, True),
    Case(1, 5, 75, 130, 4, 3, 1, True),
    Case(1, 37, 41, 64, 64, 3, 1, True),
    Case(2, 8, 12, 130, 200, 3, 1, True),
    Case(1, 8, 12, 200, 700, 3, 1, True),
    Case(1, 8, 12, 64, 768, 3, 1, True),
    Case(5, 18, 21, 200, 260, 3, 1, False),
    Case(1, 130, 130, 1, 64, 3, 1, True),
    Case(1, 130, 130, 64, 1, 3, 1, True),
    Case(1, 130, 130, 64, 1, 3, 2, True),
    Case(1, 260, 260, 1, 64, 3, 1, True),
    Case(1, 4, 4, 200, 640, 3, 1, True),
    Case(1, 5, 4, 3, 2, 3, 5, True),
    Case(1, 2, 2, 3, 5, 5, 1, True),
    Case(2, 1, 1, 20, 30, 3, 1, True),
)


def cases() -> Iterator[Case]:
    """Yield all shapes of the CPU kernels' test."""
    for kernel in (1, 3, 5):
        for stride in (1, 2):
            for same in (True, False):
                for inputs in (1, 3, 17):
                    for outputs in (1, 4, 66):
                        for width in (23, 11):
                            height = 7 if width == 11 else 10
                            yield Case(2, height, width, inputs, outputs, kernel, stride, same)
    yield from _SINGLE


def layer_shape(layer: Layer, batch: int) -> Shape:
    """Return a network's layer, padded as its Keras model does."""
    image = (batch, layer.height, layer.width, layer.inputs)
    return Shape.of(image, layer.outputs, kernel=layer.kernel, stride=layer.stride)


def shrunk(layer: Layer) -> Layer:
    """Return a layer that the emulator computes in a fraction of a second."""
    most = min(layer.inputs, 8), min(layer.outputs, 8)
    return Layer(6, 7, *most, kernel=layer.kernel, stride=layer.stride)
