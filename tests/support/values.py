"""Values that no check takes, for the tests of this folder."""

from __future__ import annotations


class Unprintable:
    def __repr__(self):
        raise RuntimeError("no text")

    def __index__(self):
        raise RuntimeError("no number")

    def __float__(self):
        raise RuntimeError("no number")
