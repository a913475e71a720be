"""Imports of what `pip install overlap_train` leaves to its extras."""

from __future__ import annotations

import importlib
from types import ModuleType

__all__ = ["import_extra"]


def import_extra(module: str, *, purpose: str, package: str = "") -> ModuleType:
    """Return a module that an extra of this package brings.

    Args:
        module: its name, as for `importlib.import_module`.
        purpose: what needs it, as the subject of a sentence.
        package: what it is installed as, if not as it is imported.

    Raises:
        ModuleNotFoundError: it is not installed; the message says how to install it.
    """
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
