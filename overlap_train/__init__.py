"""Keras training with validation overlapped: the same numbers, sooner."""

from overlap_train._version import __version__

__all__ = ["__version__"]
