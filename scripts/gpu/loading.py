"""Modules of overlap_train that need no TensorFlow, without the packages around them, which do."""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path
from typing import Any

__all__ = ["ROOT", "without_tensorflow"]

ROOT = Path(__file__).resolve().parents[2]


def without_tensorflow(name: str) -> Any:
    """Import a module such as "zero_copy.cuda"; the `__init__` of its package is not run.

    Only for processes that import nothing else of that package.
    """
    package = f"overlap_train.{name.rpartition('.')[0]}"
    if package not in sys.modules:
        bare = types.ModuleType(package)
        bare.__path__ = [str(ROOT.joinpath(*package.split(".")))]
        sys.modules[package] = bare
    return importlib.import_module(f"overlap_train.{name}")
