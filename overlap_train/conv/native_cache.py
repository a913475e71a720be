"""Where compiled libraries lie: in the user's cache, and in the package if a wheel contains one.

    <cache>/<key>/liboverlap_conv.so   built here, for everything that the key says (`build.py`)
    <cache>/<key>/manifest.json        its digest; written last, it makes the library valid
    <cache>/<key>.lock                 locked by the process that builds
    conv/prebuilt/liboverlap_conv.so   of a wheel; its kernels are chosen by the processor when they run
    conv/prebuilt/manifest.json        what it was compiled for

The cache must belong to the user alone, as code is loaded from it. Nothing is made or opened for writing to
read from it, so a cache in a read-only image works. Any thread, any process.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import shutil
import stat
import sys
from pathlib import Path
from typing import Any

from overlap_train._support.caches import convolution_builds
from overlap_train._support.files import read_regular, wait_for_lock
from overlap_train.errors import NativeUnavailableError

NATIVE_SOURCES = Path(__file__).parent / "native"
LIBRARY_NAME = "liboverlap_conv.so"
MANIFEST = "manifest.json"
_MOST_MANIFEST_BYTES, _MOST_LIBRARY_BYTES = 1 << 16, 1 << 28
_REMEDY = "name another directory in OVERLAP_TRAIN_CACHE_DIR"


def digest_sources() -> str:
    """Return a digest of the sources without hidden files, which a wheel lacks."""
    digest = hashlib.sha256()
    for source in sorted(NATIVE_SOURCES.iterdir()):
        if source.is_file() and not source.name.startswith("."):
            digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()


def cache_path() -> Path:
    """Return the directory of all builds, which may not exist yet."""
    directory = convolution_builds()
    if directory is None:
        raise NativeUnavailableError(
            "There is no home directory to keep the tiled convolution in; name a directory in "
            "OVERLAP_TRAIN_CACHE_DIR."
        )
    return directory


def cache_directory() -> Path:
    """Return the directory of all builds; make it if it does not exist."""
    directory = cache_path()
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise NativeUnavailableError(
            f"The cache directory {directory} cannot be made ({error}); {_REMEDY}."
        ) from error
    _check_private(directory)
    return directory


def _check_private(path: Path) -> None:
    """Raise if another user owns or may write a path: a library from there would run as this user."""
    try:
        status = path.lstat()
    except OSError as error:
        raise NativeUnavailableError(f"{path} cannot be examined ({error}); {_REMEDY}.") from error
    if stat.S_ISLNK(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise NativeUnavailableError(
            f"{path} must belong to user {os.getuid()} alone (owner {status.st_uid}, mode "
            f"{stat.S_IMODE(status.st_mode):04o}, no link), because code is loaded from it. "
            "Remove it, or name another place in OVERLAP_TRAIN_CACHE_DIR."
        )


def cached_library(key: str) -> Path | None:
    """Return the library built under `key` if it exists, is private and matches its manifest."""
    root = cache_path()
    directory = root / key
    library, manifest = directory / LIBRARY_NAME, directory / MANIFEST
    for path in (root, directory, manifest, library):
        if not os.path.lexists(path):
            return None
        _check_private(path)
    try:
        recorded = json.loads(_read(manifest, _MOST_MANIFEST_BYTES))
        digest = hashlib.sha256(_read(library, _MOST_LIBRARY_BYTES)).hexdigest()
    except (OSError, ValueError, RecursionError):
        return None
    return library if recorded == {"key": key, "sha256": digest} else None


def _read(path: Path, most_bytes: int) -> bytes:
    return read_regular(path, most_bytes=most_bytes, follow_links=False)


def locked(path: Path, *, limit_s: float) -> contextlib.ExitStack:
    """Hold a lock between processes while the block runs, or raise NativeUnavailableError after `limit_s`."""
    try:
        descriptor = wait_for_lock(path, 0o600, limit_s=limit_s)
    except OSError as error:
        raise NativeUnavailableError(f"{path} cannot be locked for a build ({error}); {_REMEDY}.") from error
    undo = contextlib.ExitStack()
    undo.callback(os.close, descriptor)
    return undo


def install(library: Path, directory: Path, key: str) -> Path:
    """Move a library into the cache; the manifest, written last, makes it valid."""
    directory.mkdir(mode=0o700, exist_ok=True)
    library.chmod(0o700)
    digest = hashlib.sha256(_read(library, _MOST_LIBRARY_BYTES)).hexdigest()
    os.replace(library, directory / LIBRARY_NAME)
    manifest = directory / f"{MANIFEST}.new"
    with contextlib.suppress(FileNotFoundError):
        manifest.unlink()  # of a killed build, or a pipe, which would block
    manifest.write_text(json.dumps({"key": key, "sha256": digest}))
    manifest.chmod(0o600)
    os.replace(manifest, directory / MANIFEST)
    return directory / LIBRARY_NAME


def say(text: str) -> None:
    """Print a line to stderr, if there is one."""
    with contextlib.suppress(OSError, ValueError):
        print(f"overlap_train: {text}", file=sys.stderr, flush=True)


_DIRECTORY = Path(__file__).parent / "prebuilt"


def bundled_library() -> Path | None:
    """Return the library in this package, if it was compiled for this machine and TensorFlow."""
    try:
        recorded = json.loads(read_regular(_DIRECTORY / MANIFEST, most_bytes=_MOST_MANIFEST_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    library = _DIRECTORY / LIBRARY_NAME
    return library if recorded == _facts() and library.is_file() else None


def bundle(library: Path, directory: Path) -> None:
    """Copy a library to the folder that a wheel is built from, with what it was compiled for."""
    directory.mkdir(parents=True, exist_ok=True)
    shutil.copy(library, directory / LIBRARY_NAME)
    (directory / LIBRARY_NAME).chmod(0o755)
    (directory / MANIFEST).write_text(json.dumps(_facts()))


def _facts() -> dict[str, Any]:
    """Return everything that decides whether a library can be loaded."""
    import tensorflow as tf

    return {
        "tensorflow": f"{tf.version.VERSION} {tf.version.GIT_VERSION}",
        "abi": [flag for flag in tf.sysconfig.get_compile_flags() if flag.startswith(("-D", "-std"))],
        "machine": f"{platform.system()} {platform.machine()}",
        "sources": digest_sources(),
    }
