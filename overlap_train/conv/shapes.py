"""One convolution, and what was measured of it."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["DIRECTIONS", "MATMUL", "STOCK", "ConvKey", "Timing"]

STOCK = "tf.nn.conv2d"
MATMUL = "matmul"
DIRECTIONS = ("forward", "input_gradient", "filter_gradient")
# On two cores, products of so few rows took 0.4 to 0.9 of the time of a 1x1 convolution, in all directions.
_FEW_PIXELS = 2048


@dataclass(frozen=True)
class ConvKey:
    """Describe one convolution in one direction.

    Attributes:
        direction: "forward", "input_gradient" or "filter_gradient".
        dtype: "float32" or "float64".
        input_shape: [batch, height, width, in_channels].
        filter_shape: [height, width, in_channels, out_channels].
        strides: [height, width].
        padding: "SAME" or "VALID".
        bias: whether a bias is added; forward only.
        relu: whether a ReLU follows; forward only.
        batch_assumed: whether the batch was unknown while tracing, so that `input_shape` holds a guess.
    """

    direction: str
    dtype: str
    input_shape: tuple[int, int, int, int]
    filter_shape: tuple[int, int, int, int]
    strides: tuple[int, int]
    padding: str
    bias: bool = False
    relu: bool = False
    batch_assumed: bool = field(default=False, compare=False)

    @property
    def output_shape(self) -> tuple[int, int, int, int]:
        """[batch, height, width, out_channels]."""
        sizes = []
        for size, kernel, stride in zip(
            self.input_shape[1:3], self.filter_shape[:2], self.strides, strict=True
        ):
            sizes.append(-(-(size if self.padding == "SAME" else size - kernel + 1) // stride))
        return self.input_shape[0], sizes[0], sizes[1], self.filter_shape[3]

    @property
    def flops(self) -> int:
        """Floating-point operations of the direct method; a product and a sum count as two."""
        batch, height, width, channels = self.output_shape
        return (
            2
            * batch
            * height
            * width
            * channels
            * self.filter_shape[0]
            * self.filter_shape[1]
            * self.filter_shape[2]
        )

    @property
    def algorithms(self) -> tuple[str, ...]:
        """What can compute it in place of `STOCK`."""
        if self.strides != (1, 1):
            return ("direct",)
        return {(3, 3): ("winograd", "direct"), (1, 1): (MATMUL, "direct")}.get(
            self.filter_shape[:2], ("direct",)
        )

    @property
    def untimed(self) -> str:
        """The algorithm where none has been timed: one that does not lose to `STOCK`, or that itself."""
        batch, height, width, _ = self.input_shape
        few = batch * height * width <= _FEW_PIXELS
        return MATMUL if few and MATMUL in self.algorithms else STOCK


@dataclass(frozen=True)
class Timing:
    """Hold the measured times of one shape.

    Attributes:
        key: the convolution.
        milliseconds: the fastest run of each algorithm by name, TensorFlow's included.
        chosen: the algorithm that "auto" uses.
    """

    key: ConvKey
    milliseconds: dict[str, float]
    chosen: str

    @property
    def speedup(self) -> float:
        """TensorFlow's time over the chosen algorithm's; 1 where TensorFlow's was chosen."""
        return self.milliseconds[STOCK] / self.milliseconds[self.chosen]

    @property
    def best_of_ours(self) -> float:
        """TensorFlow's time over our fastest algorithm's; below 1 where we lose."""
        ours = min(ms for name, ms in self.milliseconds.items() if name != STOCK)
        return self.milliseconds[STOCK] / ours
