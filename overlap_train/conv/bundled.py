"""The library that a wheel brings along, compiled for the TensorFlow that the wheel requires.

    conv/prebuilt/liboverlap_conv.so   the library; its kernels are chosen by the processor when they run
    conv/prebuilt/manifest.json        what it was compiled for

A checkout has none: there it is compiled once into the user's cache (`build.py`), and so it is where the
wheel's does not fit.
"""

from __future__ import annotations

import json
import platform
import shutil
from pathlib import Path
from typing import Any

from overlap_train._support.files import read_regular
from overlap_train.conv.native_cache import LIBRARY_NAME, MANIFEST, digest_sources

__all__ = ["bundle", "bundled_library"]

_DIRECTORY = Path(__file__).parent / "prebuilt"
_MOST_BYTES = 1 << 16


def bundled_library() -> Path | None:
    """Returns the library of this installation, if it was compiled for this machine and TensorFlow."""
    try:
        recorded = json.loads(read_regular(_DIRECTORY / MANIFEST, most_bytes=_MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    library = _DIRECTORY / LIBRARY_NAME
    return library if recorded == _facts() and library.is_file() else None


def bundle(library: Path, directory: Path) -> None:
    """Copies a library to where a wheel is built from, and notes what it was compiled for."""
    directory.mkdir(parents=True, exist_ok=True)
    shutil.copy(library, directory / LIBRARY_NAME)
    (directory / LIBRARY_NAME).chmod(0o755)
    (directory / MANIFEST).write_text(json.dumps(_facts()))


def _facts() -> dict[str, Any]:
    """Returns what decides whether a library can be loaded."""
    import tensorflow as tf

    return {
        "tensorflow": f"{tf.version.VERSION} {tf.version.GIT_VERSION}",
        "abi": [flag for flag in tf.sysconfig.get_compile_flags() if flag.startswith(("-D", "-std"))],
        "machine": f"{platform.system()} {platform.machine()}",
        "sources": digest_sources(),
    }
