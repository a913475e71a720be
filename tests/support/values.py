"""Values that no check takes and nothing can print."""

from __future__ import annotations


class Unprintable:
    """Raises whatever it is asked."""

    def __array__(self, *arguments, **options):
        raise KeyError("no array")

    def __repr__(self):
        raise RuntimeError("no text")

    def __index__(self):
        raise RuntimeError("no number")

    def __float__(self):
        raise RuntimeError("no number")
