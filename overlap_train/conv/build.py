"""Builds the native convolution with CMake, into a cache that belongs to the user alone.

    python -m overlap_train.conv.build [--cuda] [--force] [--into DIRECTORY]

The same happens by itself on first use. A build is kept under a key made of everything that decides the
binary: TensorFlow's version and flags, the compiler and its version, the CPU, the sources. Several processes
that need one build at the same time make it once: the first takes a lock, the others wait for it and find the
result. `native_cache.py` holds the cache, `toolchain.py` the programs.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import platform
import re
import shlex
import signal
import sys
import tempfile
from pathlib import Path

from overlap_train._support.printing import is_watched
from overlap_train.conv.bundled import bundle
from overlap_train.conv.native_cache import (
    LIBRARY_NAME,
    MANIFEST,
    NATIVE_SOURCES,
    cache_directory,
    cache_path,
    cached_library,
    digest_sources,
    install,
    locked,
    say,
)
from overlap_train.conv.toolchain import Toolchain, find_toolchain, run_limited
from overlap_train.errors import NativeUnavailableError

__all__ = ["Toolchain", "build", "cache_directory", "cached_library", "find_toolchain", "is_cached"]

_MANIFEST = MANIFEST

_PROGRESS = re.compile(r"^\[\s*(\d+)(?:/(\d+)|%)\]")
# A compiler that hangs must not hang a program for ever; with CUDA an old machine may take a quarter of this.
_BUILD_S = 3600.0


def _cpu_description() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith(("flags", "Features")):
                return f"{platform.machine()} {' '.join(sorted(line.split(':', 1)[1].split()))}"
    return f"{platform.machine()} {platform.processor()}"


def _tensorflow_flags() -> tuple[str, str, str]:
    import tensorflow as tf

    compile_flags, link_flags = tf.sysconfig.get_compile_flags(), tf.sysconfig.get_link_flags()
    return f"{tf.version.VERSION} {tf.version.GIT_VERSION}", " ".join(compile_flags), " ".join(link_flags)


def cache_key(toolchain: Toolchain) -> str:
    """A digest of all that decides the binary."""
    digest = hashlib.sha256()
    parts = [
        *_tensorflow_flags(),
        toolchain.compiler,
        *toolchain.compiler_arguments,
        toolchain.compiler_version,
        toolchain.nvcc or "no CUDA",
    ]
    for part in [*parts, _cpu_description()]:
        # A path may hold bytes that are no text.
        digest.update(part.encode("utf-8", "surrogateescape") + b"\0")
    digest.update(digest_sources().encode())
    return digest.hexdigest()[:24]


def _run(command: list[str], log: list[str], directory: Path | None = None) -> None:
    """Runs a step of the build, its progress shown on one line where stderr is a terminal."""
    show = is_watched(sys.stderr)
    rest = ""

    def take(chunk: bytes) -> None:
        nonlocal rest
        *lines, rest = (rest + chunk.decode("utf-8", errors="replace")).split("\n")
        for line in lines:
            log.append(f"{line}\n")
            if show and _PROGRESS.match(line):
                print(f"\r  {line.split(']')[0]}]", end="", file=sys.stderr, flush=True)

    # Compilers write next to what they build, so that they need no other temporary directory.
    environment = {**os.environ, "TMPDIR": str(directory)} if directory is not None else None
    try:
        status = run_limited(command, limit_s=_BUILD_S, take=take, environment=environment)
    except OSError as error:  # TimeoutError is one
        raise NativeUnavailableError(
            f"Building the tiled convolution failed: {shlex.join(command)}: {error}"
        ) from error
    if show:
        print("\r", end="", file=sys.stderr)
    if status != 0:
        tail = "".join([*log, rest][-40:])
        raise NativeUnavailableError(
            f"Building the tiled convolution failed: {shlex.join(command)} ended with {_end(status)}\n{tail}"
        )


def _end(status: int) -> str:
    """What ended a program; a signal, such as that of a limit of this process, leaves no other trace."""
    if status > 0:
        return f"status {status}"
    with contextlib.suppress(ValueError):  # a signal without a name
        return signal.Signals(-status).name
    return f"signal {-status}"


def _compile(toolchain: Toolchain, directory: Path) -> Path:
    """Configures and builds in `directory`; returns the library."""
    _, compile_flags, link_flags = _tensorflow_flags()
    configure = [toolchain.cmake, "-S", str(NATIVE_SOURCES), "-B", str(directory), "-G", toolchain.generator]
    compiler = ";".join([toolchain.compiler, *toolchain.compiler_arguments])
    configure += [f"-DCMAKE_CXX_COMPILER={compiler}", "-DCMAKE_BUILD_TYPE=Release"]
    configure += [f"-DTF_COMPILE_FLAGS={compile_flags}", f"-DTF_LINK_FLAGS={link_flags}"]
    if toolchain.ninja:
        configure.append(f"-DCMAKE_MAKE_PROGRAM={toolchain.ninja}")
    if toolchain.nvcc:
        configure += ["-DOVERLAP_CONV_CUDA=ON", f"-DCMAKE_CUDA_COMPILER={toolchain.nvcc}"]
    log: list[str] = []
    _run(configure, log, directory)
    _run(
        [toolchain.cmake, "--build", str(directory), "--parallel", "--target", "overlap_conv"], log, directory
    )
    return directory / LIBRARY_NAME


def is_cached(*, cuda: bool = False) -> bool:
    """Whether `build` would find its result in the cache; makes nothing and opens nothing for writing."""
    try:
        # The compiler is asked for its version only where there can be a build of it.
        return cache_path().is_dir() and cached_library(cache_key(find_toolchain(cuda=cuda))) is not None
    except (NativeUnavailableError, OSError):
        return False


def build(*, cuda: bool = False, force: bool = False) -> Path:
    """Returns the library for this machine, built if the cache does not have it. Any thread, any process.

    Args:
        cuda: with the CUDA kernels.
        force: build even if the cache has it.

    Raises:
        NativeUnavailableError: it cannot be built here.
    """
    toolchain = find_toolchain(cuda=cuda)
    try:
        key = cache_key(toolchain)
        # Without the lock first: it is a file to be written, which a read-only cache does not allow.
        library = None if force else cached_library(key)
        return library if library is not None else _build(toolchain, key, force=force)
    except OSError as error:
        raise NativeUnavailableError(
            f"The tiled convolution cannot be built in {cache_path()} ({error}); name another directory in "
            "OVERLAP_TRAIN_CACHE_DIR, or make room there."
        ) from error


def _build(toolchain: Toolchain, key: str, *, force: bool) -> Path:
    """Builds what `build` did not find, unless another process does so meanwhile."""
    cache = cache_directory()
    with locked(cache / f"{key}.lock", limit_s=_BUILD_S):
        library = None if force else cached_library(key)
        if library is not None:
            return library
        say("building the tiled convolution (once; a minute or two) ...")
        with tempfile.TemporaryDirectory(prefix="build-", dir=cache, ignore_cleanup_errors=True) as directory:
            library = install(_compile(toolchain, Path(directory)), cache / key, key)
        say(f"built {library}")
        return library


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m overlap_train.conv.build", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--cuda", action="store_true", help="with the CUDA kernels (needs nvcc)")
    parser.add_argument("--force", action="store_true", help="build even if the cache has it")
    parser.add_argument("--into", type=Path, help="copy it to where a wheel is built from")
    options = parser.parse_args(arguments)
    try:
        library = build(cuda=options.cuda, force=options.force)
        if options.into is not None:
            bundle(library, options.into)
        print(library)
    except (NativeUnavailableError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
