"""Late imports, and messages for what is missing or a Keras on another backend. Any thread.

Names of the package are loaded when they are first used, so that importing it starts nothing: TensorFlow's
threads, for example, must be configured before it starts.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

BACKEND_REMEDY = "export KERAS_BACKEND=tensorflow (or the same in ~/.keras/keras.json)"


def configured_backend() -> str:
    """Return the backend on which Keras is configured to run, which need not be installed."""
    backend = os.environ.get("KERAS_BACKEND")
    with contextlib.suppress(OSError, ValueError, AttributeError, RuntimeError):  # no such file, or no home
        home = Path(os.environ.get("KERAS_HOME") or Path.home() / ".keras")
        backend = backend or json.loads((home / "keras.json").read_text(encoding="utf-8")).get("backend")
    return str(backend or "tensorflow")


def other_backend(name: str) -> str:
    """Return the message for a Keras that runs on another backend than TensorFlow."""
    return (
        f"Keras runs on the backend {name!r}, and overlap_train trains on TensorFlow only: set "
        "KERAS_BACKEND=tensorflow before keras is imported, or train with keras.Model.fit"
    )


def require_tensorflow() -> None:
    """Import Keras; raise RuntimeError if it runs on another backend than TensorFlow."""
    import keras

    if keras.config.backend() != "tensorflow":
        raise RuntimeError(other_backend(keras.config.backend()))


def import_extra(module: str, *, purpose: str, package: str = "") -> types.ModuleType:
    """Return a module of an extra, or raise a ModuleNotFoundError that says how to install it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        top = module.partition(".")[0]
        if error.name is None or error.name.partition(".")[0] != top:
            raise  # it is installed, and lacks something else
        # The package itself and not our extra, which pip finds only in a checkout.
        package = package or top
        raise ModuleNotFoundError(
            f"{purpose} needs {package}, which is not installed: pip install {package}", name=error.name
        ) from error


def lazy_names(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and the `__dir__` of a package that exports names of its modules.

    `homes` has the module of each name, relative to the package or from `overlap_train` on.
    """

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = homes[name]
        module = home if home.startswith("overlap_train.") else f"{package}.{home}"
        value = getattr(importlib.import_module(module), name)
        setattr(sys.modules[package], name, value)
        return value

    return find, public_names(package)


def public_names(module: str) -> Callable[[], list[str]]:
    """Return the `__dir__` of a module that shows its public names only."""

    def names() -> list[str]:
        members = vars(sys.modules[module])
        return sorted({*members["__all__"], *(name for name in members if name.startswith("__"))})

    return names
