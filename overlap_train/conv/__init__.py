"""A tiled convolution for TensorFlow: an operation, a Keras layer, and `accelerate` for existing models.

The names are loaded when they are first used: the modules that need no TensorFlow can be imported without it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from overlap_train.conv.acceleration import accelerate
    from overlap_train.conv.layers import TiledConv2D
    from overlap_train.conv.library import instruction_set, is_available
    from overlap_train.conv.operation import tiled_conv2d
    from overlap_train.conv.reporting import format_report, report
    from overlap_train.conv.shapes import ConvKey, Timing

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
    "ConvKey": "selection",
    "TiledConv2D": "layers",
    "Timing": "selection",
    "accelerate": "acceleration",
    "format_report": "reporting",
    "instruction_set": "library",
    "is_available": "library",
    "report": "reporting",
    "tiled_conv2d": "operation",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
