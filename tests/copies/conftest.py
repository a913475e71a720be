"""Fixtures of the tests of copies."""

from tests.callbacks.conftest import model

__all__ = ["model"]
