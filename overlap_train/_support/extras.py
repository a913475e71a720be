"""Imports of what `pip install overlap_train` leaves to its extras."""

from __future__ import annotations

import importlib
from types import ModuleType

__all__ = ["import_extra"]


def import_extra(module: str, *, purpose: str, package: str = "") -> ModuleType:
    """Return a module that an extra brings, or raise a ModuleNotFoundError that says how to install it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        imported = module.partition(".")[0]
        if error.name is None or error.name.partition(".")[0] != imported:
            raise  # it is there, and lacks something else
        # The package itself and not our extra, which pip finds in a checkout only.
        package = package or imported
        raise ModuleNotFoundError(
            f"{purpose} needs {package}, which is not installed: pip install {package}", name=error.name
        ) from error
