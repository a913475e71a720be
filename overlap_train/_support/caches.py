"""Where this package keeps what another run can use, and under which conditions measured times still count.

    <home>/convolutions/<key>.json    times of single convolutions: conv/measurements.py
    <home>/zero_copy.json             from which size on a copy pays: zero_copy/policy.py
    <builds>/conv/<key>/              the compiled convolution: conv/native_cache.py

The home is `overlap_train` in `$XDG_CACHE_HOME` or `~/.cache`; builds lie there too, unless
`$OVERLAP_TRAIN_CACHE_DIR` names another directory. Times of another machine, library or setting do not count.
Makes nothing. Any thread.
"""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import sys
from pathlib import Path

from overlap_train._support.version import __version__

__all__ = [
    "cache_home",
    "conditions",
    "convolution_builds",
    "convolution_times",
    "copy_times",
    "processor_name",
]


def cache_home() -> Path | None:
    """Return where this package caches, `$XDG_CACHE_HOME` or `~/.cache`; None where there is no home.

    A relative `$XDG_CACHE_HOME` does not count, as the XDG Base Directory Specification asks.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):
        return Path(base) / "overlap_train"
    home = os.path.expanduser("~") if os.environ.get("HOME") != "" else ""
    return Path(home) / ".cache" / "overlap_train" if os.path.isabs(home) else None


def convolution_times() -> Path | None:
    """Return the directory of the times of convolutions; None where there is no home."""
    return _within("convolutions")


def copy_times() -> Path | None:
    """Return the file of the sizes from which on copies pay; None where there is no home."""
    return _within("zero_copy.json")


def convolution_builds() -> Path | None:
    """Return the directory of the compiled convolution; None where there is no home and none is named."""
    chosen = os.environ.get("OVERLAP_TRAIN_CACHE_DIR")
    return Path(os.path.abspath(chosen)) / "conv" if chosen else _within("conv")


def _within(name: str) -> Path | None:
    home = cache_home()
    return None if home is None else home / name


# Of the first core in /proc/cpuinfo. A virtual machine may call processors of different designs by one name.
_PROCESSOR = ("model name", "cpu family", "model", "stepping", "flags")
# Variables that decide which code runs in TensorFlow, oneDNN, XLA, OpenMP, the allocator and our kernels.
_PREFIXES = ("DNNL_", "KMP_", "MALLOC_", "OMP_", "ONEDNN_", "OVERLAP_TRAIN_CONV_", "TF_NUM_", "ZENDNN_")
_NAMES = ("LD_PRELOAD", "TF_ENABLE_ONEDNN_OPTS", "TF_XLA_FLAGS", "XLA_FLAGS")


def conditions() -> tuple[object, ...]:
    """Return what decides how fast the same graph runs here, but for the threads: machine and libraries.

    Its `repr` is the same in every process under the same conditions. Any thread.
    """
    import keras
    import numpy as np
    import tensorflow as tf

    environment = sorted(
        (name, value) for name, value in os.environ.items() if name in _NAMES or name.startswith(_PREFIXES)
    )
    versions = (tf.__version__, keras.__version__, np.__version__, __version__)
    # What is no text Python passes over, too, when it looks for a module.
    plugins = _plugins(tuple(place for place in sys.path if isinstance(place, str)))
    return platform.machine(), tuple(_processor().items()), tuple(environment), versions, plugins


def processor_name() -> str:
    """Return the name of the processor, where the system tells."""
    return _processor().get("model name") or platform.processor()


@functools.cache
def _processor() -> dict[str, str]:
    """Return what the system says of the first core."""
    found: dict[str, str] = {}
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            name, _, value = line.partition(":")
            if not name.strip():
                break
            if name.strip() in _PROCESSOR:
                found[name.strip()] = value.strip()
    return found


@functools.lru_cache(maxsize=4)
def _plugins(places: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of the libraries that TensorFlow loads unasked, which may replace its kernels."""
    found: set[str] = set()
    for place in places:
        with contextlib.suppress(OSError, ValueError):  # it is not there, or no name
            found |= set(os.listdir(os.path.join(place, "tensorflow-plugins")))
    return tuple(sorted(found))
