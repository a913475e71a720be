"""A depthwise convolution of a graph: TensorFlow's operations, and our gradient of the filters.

TensorFlow forms that gradient for one image at a time and then adds the images' results: on small images of
many channels, which are half of a MobileNet, this takes several times as long as the other two directions
together.
"""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf

from overlap_train.conv import library
from overlap_train.conv.gradients import record_gradient

__all__ = ["DepthwiseConvolution"]


@dataclass(frozen=True)
class DepthwiseConvolution:
    """What stays the same for every call of one depthwise convolution in a graph."""

    stride: int  # of both dimensions; TensorFlow has no others
    padding: str

    def __call__(self, x: tf.Tensor, filters: tf.Tensor) -> tf.Tensor:
        """Computes [batch, out_height, out_width, channels] from filters [height, width, channels, 1]."""
        y = tf.nn.depthwise_conv2d(x, filters, self._window, self.padding)
        record_gradient(self, (x, filters), y)
        return y

    def gradients(
        self, dy: tf.Tensor, _: tf.Tensor, x: tf.Tensor, filters: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """The gradients to input and filters."""
        dx = tf.nn.depthwise_conv2d_backprop_input(tf.shape(x), filters, dy, self._window, self.padding)
        dfilters = library.load().overlap_depthwise_conv2d_backprop_filter(
            x, tf.shape(filters), dy, strides=[self.stride] * 2, padding=self.padding
        )
        return dx, dfilters

    @property
    def _window(self) -> list[int]:
        return [1, self.stride, self.stride, 1]
