"""A pytest plugin: this package, and its tests, believe that TensorFlow sees a GPU where there is none.

    scripts/test.sh -p tests.pretended_gpu tests/training

What the package chooses on a GPU then runs on the CPU, so that tests which know what it chooses on a CPU fail
here as they would on a card. Where tensors lie, and what a card computes, it does not show.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest


@pytest.hookimpl(trylast=True)  # after the root conftest has said how TensorFlow is to begin
def pytest_sessionstart() -> None:
    """Adds a GPU to the devices, for whoever asks from here."""
    import tensorflow as tf

    for name in ("list_physical_devices", "list_logical_devices"):
        setattr(tf.config, name, with_one_more(getattr(tf.config, name)))


def with_one_more(devices: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    def found(device_type: str | None = None) -> list[Any]:
        asks = sys._getframe(1).f_globals["__name__"]
        ours = asks.startswith(("overlap_train.", "tests."))
        return devices("CPU")[:1] if device_type == "GPU" and ours else devices(device_type)

    return found
