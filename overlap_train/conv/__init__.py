"""A tiled convolution for TensorFlow: an operation, a Keras layer, and `accelerate` for existing models."""

from overlap_train.conv.acceleration import accelerate
from overlap_train.conv.layers import TiledConv2D
from overlap_train.conv.library import instruction_set, is_available
from overlap_train.conv.operation import tiled_conv2d
from overlap_train.conv.reporting import format_report, report
from overlap_train.conv.selection import ConvKey, Timing

__all__ = [
    "ConvKey",
    "TiledConv2D",
    "Timing",
    "accelerate",
    "format_report",
    "instruction_set",
    "is_available",
    "report",
    "tiled_conv2d",
]
