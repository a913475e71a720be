"""A tiled convolution for TensorFlow: an operation, a Keras layer, and `accelerate` for existing models.

Names are loaded on first use, so the modules that do not need TensorFlow can be imported without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlap_train._support.imports import lazy_names

if TYPE_CHECKING:
    from overlap_train.conv.acceleration import accelerate
    from overlap_train.conv.library import instruction_set, is_available
    from overlap_train.conv.operation import TiledConv2D, tiled_conv2d
    from overlap_train.conv.selection import ConvKey, Timing, format_report, report

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

_HOMES = {
    **dict.fromkeys(("ConvKey", "Timing", "format_report", "report"), "selection"),
    **dict.fromkeys(("TiledConv2D", "tiled_conv2d"), "operation"),
    "accelerate": "acceleration",
    **dict.fromkeys(("instruction_set", "is_available"), "library"),
}


__getattr__, __dir__ = lazy_names(__name__, _HOMES)
