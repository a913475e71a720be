"""JPEG examples, decoded batch by batch: by TensorFlow inside a pipeline, or by Pillow without one."""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import numpy.typing as npt

from scripts.bench.tasks import Examples

if TYPE_CHECKING:
    import tensorflow as tf

__all__ = ["DecodedBatches", "decode_photo"]

_CUT, _SIDE = 160, 32
_MARGIN = 32  # from the photograph's edge to the cut in its middle


def decode_photo(photo: tf.Tensor, training: bool) -> tf.Tensor:
    """Decodes one JPEG; a part of it chosen at random for training, the middle otherwise.

    Returns:
        float32 `[32, 32, 3]` of 0 to 1.
    """
    import tensorflow as tf

    pixels = tf.image.decode_jpeg(photo, channels=3)
    if training:
        cut = tf.image.random_crop(pixels, (_CUT, _CUT, 3))
    else:
        cut = pixels[_MARGIN : _MARGIN + _CUT, _MARGIN : _MARGIN + _CUT]
    return tf.image.resize(cut, (_SIDE, _SIDE), antialias=True) / 255.0


class DecodedBatches(keras.utils.PyDataset):  # type: ignore[misc]
    """The same with Pillow, which lets other threads run meanwhile; for Keras on any backend.

    Keras calls `__getitem__` from its workers. Each pass has an order and cuts of its own.
    """

    def __init__(self, examples: Examples, batch_size: int, *, training: bool, workers: int) -> None:
        super().__init__(workers=workers, max_queue_size=4 * workers)
        self._examples = examples
        self._batch_size = batch_size
        self._training = training
        self._pass = 0
        self._order = np.arange(len(examples))
        self.on_epoch_end()

    def __len__(self) -> int:
        return math.ceil(len(self._examples) / self._batch_size)

    def __getitem__(self, index: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[Any]]:
        rows = self._order[index * self._batch_size : (index + 1) * self._batch_size]
        generator = np.random.default_rng((self._pass, index))
        x = np.stack([self._decode(self._examples.x[row], generator) for row in rows])
        return x, self._examples.y[rows]

    def on_epoch_end(self) -> None:
        """Draws the order of the next pass."""
        self._pass += 1
        if self._training:
            self._order = np.random.default_rng(self._pass).permutation(len(self._examples))

    def _decode(self, photo: bytes, generator: np.random.Generator) -> npt.NDArray[np.float32]:
        from PIL import Image

        with Image.open(io.BytesIO(photo)) as picture:
            left, top = _MARGIN, _MARGIN
            if self._training:
                left, top = (int(generator.integers(0, side - _CUT + 1)) for side in picture.size)
            box = (left, top, left + _CUT, top + _CUT)
            small = picture.convert("RGB").resize((_SIDE, _SIDE), Image.Resampling.BILINEAR, box)
        return np.asarray(small, np.float32) / np.float32(255)
