"""Imports of what `pip install overlap_train` leaves to its extras."""

from __future__ import annotations

import importlib
from types import ModuleType

__all__ = ["import_extra"]


def import_extra(module: str, *, extra: str, purpose: str) -> ModuleType:
    """Return a module that an extra of this package brings.

    Args:
        module: its name, as for `importlib.import_module`.
        extra: which one of setup.cfg's brings it.
        purpose: what needs it, as the subject of a sentence.

    Raises:
        ModuleNotFoundError: it is not installed; the message says how to install it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name is None or error.name.partition(".")[0] != package:
            raise  # it is there, and lacks something else
        raise ModuleNotFoundError(
            f'{purpose} needs {package}, which is not installed: pip install "overlap_train[{extra}]"',
            name=error.name,
        ) from error
