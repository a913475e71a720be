"""Fixtures of the tests of copies."""

from __future__ import annotations

from tests.callbacks.conftest import model

__all__ = ["model"]
