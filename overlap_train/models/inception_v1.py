"""GoogLeNet, the first Inception network, as it is run for inference: without the two auxiliary classifiers.

Source: Szegedy et al., "Going Deeper with Convolutions", CVPR 2015, table 1 and figures 2 and 3.
"""

from __future__ import annotations

import keras

# Table 1, for each block: 1x1, 3x3 reduce, 3x3, 5x5 reduce, 5x5, pool projection. None: a pooling by two.
_BLOCKS: tuple[tuple[str, tuple[int, ...] | None], ...] = (
    ("3a", (64, 96, 128, 16, 32, 32)),
    ("3b", (128, 128, 192, 32, 96, 64)),
    ("pool3", None),
    ("4a", (192, 96, 208, 16, 48, 64)),
    ("4b", (160, 112, 224, 24, 64, 64)),
    ("4c", (128, 128, 256, 24, 64, 64)),
    ("4d", (112, 144, 288, 32, 64, 64)),
    ("4e", (256, 160, 320, 32, 128, 128)),
    ("pool4", None),
    ("5a", (256, 160, 320, 32, 128, 128)),
    ("5b", (384, 192, 384, 48, 128, 128)),
)


def inception_v1(
    *,
    input_shape: tuple[int, int, int] = (224, 224, 3),
    num_classes: int = 1000,
) -> keras.Model:
    """Return the network, uncompiled: images `[N, H, W, C]` to probabilities `[N, classes]`, float32.

    Args:
        input_shape: `(H, W, C)`, at least 32x32; the paper's is 224x224x3 with the mean subtracted.
        num_classes: number of classes.
    """
    inputs = keras.Input(input_shape)
    x = _convolution(64, 7, strides=2, name="conv1")(inputs)
    x = LocalResponseNormalization(name="norm1")(_halve(x, "pool1"))
    x = _convolution(64, 1, name="conv2_reduce")(x)
    x = LocalResponseNormalization(name="norm2")(_convolution(192, 3, name="conv2")(x))
    x = _halve(x, "pool2")
    for name, widths in _BLOCKS:
        x = _halve(x, name) if widths is None else _inception(x, widths, name)
    x = keras.layers.GlobalAveragePooling2D(name="pool5")(x)
    x = keras.layers.Dropout(0.4)(x)
    x = keras.layers.Dense(num_classes, activation="softmax", name="classifier")(x)
    return keras.Model(inputs, x, name="inception_v1")


@keras.saving.register_keras_serializable("overlap_train")
class LocalResponseNormalization(keras.layers.Layer):  # type: ignore[misc]
    """Divides each channel by the energy of its neighbours, as Caffe's GoogLeNet does.

    y[c] = x[c] / (1 + alpha / depth · Σ x[k]²)^beta over the `depth` channels k around c, an odd
    number; float32 `[N, H, W, C]` to the same.

    Source: Krizhevsky et al., "ImageNet Classification with Deep Convolutional Neural Networks", section 3.3.
    """

    def __init__(self, *, depth: int = 5, alpha: float = 1e-4, beta: float = 0.75, name: str | None = None):
        super().__init__(name=name)
        self.depth, self.alpha, self.beta = depth, alpha, beta

    def call(self, x: keras.KerasTensor) -> keras.KerasTensor:
        """Normalise over neighbouring channels."""
        reach = self.depth // 2
        squares = keras.ops.pad(keras.ops.square(x), [(0, 0)] * (len(x.shape) - 1) + [(reach, reach)])
        channels = x.shape[-1]
        energy = sum(squares[..., shift : shift + channels] for shift in range(self.depth))
        return x * keras.ops.power(1.0 + self.alpha / self.depth * energy, -self.beta)

    def get_config(self) -> dict[str, object]:
        """Return what makes the layer anew."""
        return {"name": self.name, "depth": self.depth, "alpha": self.alpha, "beta": self.beta}


def _inception(x: keras.KerasTensor, widths: tuple[int, ...], name: str) -> keras.KerasTensor:
    """Figure 2(b): four branches side by side, joined over the channels."""
    narrow, reduce3, wide3, reduce5, wide5, projection = widths
    pooled = keras.layers.MaxPooling2D(3, strides=1, padding="same", name=f"{name}_pool")(x)
    branches = [
        _convolution(narrow, 1, name=f"{name}_1x1")(x),
        _convolution(wide3, 3, name=f"{name}_3x3")(_convolution(reduce3, 1, name=f"{name}_3x3_reduce")(x)),
        _convolution(wide5, 5, name=f"{name}_5x5")(_convolution(reduce5, 1, name=f"{name}_5x5_reduce")(x)),
        _convolution(projection, 1, name=f"{name}_projection")(pooled),
    ]
    return keras.layers.Concatenate(name=name)(branches)


def _halve(x: keras.KerasTensor, name: str) -> keras.KerasTensor:
    return keras.layers.MaxPooling2D(3, strides=2, padding="same", name=name)(x)


def _convolution(filters: int, size: int, *, strides: int = 1, name: str) -> keras.layers.Layer:
    return keras.layers.Conv2D(
        filters,
        size,
        strides=strides,
        padding="same",
        activation="relu",
        kernel_initializer="he_normal",
        bias_initializer=keras.initializers.Constant(0.2),
        name=name,
    )
