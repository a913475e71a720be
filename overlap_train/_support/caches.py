"""The one owner of where this package keeps what another run can use, and under which names.

    <home>/plans/<key>.json           times of whole plans: _training/plan_cache.py
    <home>/convolutions/<key>.json    times of single convolutions: conv/measurements.py
    <home>/zero_copy.json             from which size on a copy pays: zero_copy/policy.py
    <builds>/conv/<key>/              the compiled convolution: conv/native_cache.py

The home is `overlap_train` in `$XDG_CACHE_HOME` or `~/.cache`; builds lie there too, unless
`$OVERLAP_TRAIN_CACHE_DIR` names another directory. Makes nothing. Any thread.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["cache_home", "convolution_builds", "convolution_times", "copy_times", "plan_times"]


def cache_home() -> Path | None:
    """Returns where this package caches, `$XDG_CACHE_HOME` or `~/.cache`; None where there is no home.

    A relative `$XDG_CACHE_HOME` does not count, as the XDG Base Directory Specification asks.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):
        return Path(base) / "overlap_train"
    home = os.path.expanduser("~") if os.environ.get("HOME") != "" else ""
    return Path(home) / ".cache" / "overlap_train" if os.path.isabs(home) else None


def plan_times() -> Path | None:
    """Returns the directory of the times of plans; None where there is no home."""
    return _within("plans")


def convolution_times() -> Path | None:
    """Returns the directory of the times of convolutions; None where there is no home."""
    return _within("convolutions")


def copy_times() -> Path | None:
    """Returns the file of the sizes from which on copies pay; None where there is no home."""
    return _within("zero_copy.json")


def convolution_builds() -> Path | None:
    """Returns the directory of the compiled convolution; None where there is no home and none is named."""
    chosen = os.environ.get("OVERLAP_TRAIN_CACHE_DIR")
    return Path(os.path.abspath(chosen)) / "conv" if chosen else _within("conv")


def _within(name: str) -> Path | None:
    home = cache_home()
    return None if home is None else home / name
