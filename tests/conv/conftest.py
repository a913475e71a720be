"""Fixtures of the convolution's tests."""

from __future__ import annotations

import pytest

from overlap_train.conv import library
from overlap_train.errors import NativeUnavailableError


@pytest.fixture(scope="session")
def native() -> None:
    """Skips a test where the native convolution cannot be built; builds it otherwise."""
    try:
        library.load()
    except NativeUnavailableError as error:
        pytest.skip(f"no native convolution here: {error}")
