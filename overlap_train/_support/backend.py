"""Which backend Keras runs on, and what to do where that is not TensorFlow. Any thread."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

__all__ = ["BACKEND_REMEDY", "configured_backend", "other_backend", "require_tensorflow"]

BACKEND_REMEDY = "export KERAS_BACKEND=tensorflow (or the same in ~/.keras/keras.json)"


def configured_backend() -> str:
    """Return the backend that Keras takes when it is imported, which need not be installed."""
    asked = os.environ.get("KERAS_BACKEND")
    with contextlib.suppress(OSError, ValueError, AttributeError, RuntimeError):  # no such file, or no home
        home = Path(os.environ.get("KERAS_HOME") or Path.home() / ".keras")
        asked = asked or json.loads((home / "keras.json").read_text(encoding="utf-8")).get("backend")
    return str(asked or "tensorflow")


def other_backend(name: str) -> str:
    """Return what is said where Keras runs on another backend than TensorFlow."""
    return (
        f"Keras runs on the backend {name!r}, and overlap_train trains on TensorFlow only: set "
        "KERAS_BACKEND=tensorflow before keras is imported, or train with keras.Model.fit"
    )


def require_tensorflow() -> None:
    """Raise RuntimeError if Keras, which gets imported, runs on another backend than TensorFlow."""
    import keras

    if keras.config.backend() != "tensorflow":
        raise RuntimeError(other_backend(keras.config.backend()))
