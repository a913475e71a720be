"""Names of a package that are loaded when they are first used.

So that importing the package starts nothing: TensorFlow's threads, for example, must be set before it starts.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

from overlap_train._support.backend import configured_backend, other_backend

__all__ = ["lazy_names"]


def lazy_names(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and the `__dir__` of a package whose names are those of its modules.

    Args:
        package: its name.
        homes: the module of each name, as seen from the package, or from `overlap_train` on.
    """

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = homes[name] if homes[name].startswith("overlap_train.") else f"{package}.{homes[name]}"
        value = getattr(_imported(home), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return find, names


def _imported(name: str) -> types.ModuleType:
    """Import a module, which may import Keras.

    Raises:
        ImportError: it cannot be imported, and Keras is to run on another backend than TensorFlow.
        Exception: what the import raises otherwise.
    """
    try:
        return importlib.import_module(name)
    except Exception as error:
        backend = configured_backend()
        if backend == "tensorflow":
            raise
        raise ImportError(other_backend(backend)) from error
