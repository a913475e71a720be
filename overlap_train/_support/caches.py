"""Where this package caches results for later runs, and under which conditions a measured time is valid.

    <home>/convolutions/<key>.json    times of single convolutions: conv/selection.py
    <home>/zero_copy.json             from which size on a copy pays: zero_copy/tensors.py
    <builds>/conv/<key>/              the compiled convolution: conv/native_cache.py

The home is `overlap_train` in `$XDG_CACHE_HOME` or `~/.cache`; builds lie there too, unless
`$OVERLAP_TRAIN_CACHE_DIR` names another directory. Times of another machine, library or setting are not
valid. Nothing here makes a file. Any thread.
"""

from __future__ import annotations

import contextlib
import functools
import os
import platform
from pathlib import Path

from overlap_train._support.version import __version__


def cache_home() -> Path | None:
    """Return the directory of caches in `$XDG_CACHE_HOME` or `~/.cache`; None if there is no home.

    A relative `$XDG_CACHE_HOME` is ignored, as the XDG Base Directory Specification requires.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):
        return Path(base) / "overlap_train"
    home = os.path.expanduser("~") if os.environ.get("HOME") != "" else ""
    return Path(home) / ".cache" / "overlap_train" if os.path.isabs(home) else None


def convolution_times() -> Path | None:
    """Return the directory of the times of convolutions; None if there is no home."""
    return _within("convolutions")


def copy_times() -> Path | None:
    """Return the file of the sizes from which copies pay; None if there is no home."""
    return _within("zero_copy.json")


def convolution_builds() -> Path | None:
    """Return the directory of the compiled convolution; None if there is no home and none is named."""
    directory = os.environ.get("OVERLAP_TRAIN_CACHE_DIR")
    return Path(os.path.abspath(directory)) / "conv" if directory else _within("conv")


def _within(name: str) -> Path | None:
    home = cache_home()
    return None if home is None else home / name


# In /proc/cpuinfo. Not the name alone: a virtual machine may give processors of different designs the same.
_PROCESSOR = ("model name", "cpu family", "model", "stepping", "flags")
# Variables that select the code of TensorFlow, oneDNN, XLA, OpenMP, the allocator and our kernels.
_PREFIXES = ("DNNL_", "KMP_", "MALLOC_", "OMP_", "ONEDNN_", "OVERLAP_TRAIN_CONV_", "TF_NUM_", "ZENDNN_")
_NAMES = ("LD_PRELOAD", "TF_ENABLE_ONEDNN_OPTS", "TF_XLA_FLAGS", "XLA_FLAGS")


def conditions() -> tuple[object, ...]:
    """Return what decides how fast a graph runs here, except for the threads: machine and libraries.

    Its `repr` is the same in every process under the same conditions.
    """
    import keras
    import numpy as np
    import tensorflow as tf

    environment = sorted(
        (name, value) for name, value in os.environ.items() if name in _NAMES or name.startswith(_PREFIXES)
    )
    versions = (tf.__version__, keras.__version__, np.__version__, __version__)
    return platform.machine(), tuple(_processor().items()), tuple(environment), versions


def processor_name() -> str:
    """Return the name of the processor, if the system tells it."""
    return _processor().get("model name") or platform.processor()


@functools.cache
def _processor() -> dict[str, str]:
    """Return the attributes of the first core, as the system tells them."""
    attributes: dict[str, str] = {}
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            name, _, value = line.partition(":")
            if not name.strip():
                break
            if name.strip() in _PROCESSOR:
                attributes[name.strip()] = value.strip()
    return attributes
