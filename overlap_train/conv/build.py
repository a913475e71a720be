"""Builds the native convolution with CMake, into a cache that belongs to the user alone.

`overlap-train build` does so, and so does the first use. A build is stored under a key made of everything
that decides the binary: TensorFlow's version and flags, the compiler and its version, the CPU, the sources.
If several processes need one build at the same time, the first takes a lock and builds, and the others wait
for the result.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from overlap_train.conv.native_cache import (
    LIBRARY_NAME,
    NATIVE_SOURCES,
    cache_directory,
    cache_path,
    cached_library,
    digest_sources,
    install,
    locked,
    say,
)
from overlap_train.errors import NativeUnavailableError

_VERSION_S = 5.0
# A compiler that hangs must not hang a program for ever; with CUDA an old machine may take a quarter of this.
_BUILD_S = 3600.0
_REMEDY = (
    "set CXX to a C++17 compiler that runs here, or unset it; algorithm='auto' is tf.nn.conv2d meanwhile"
)


@dataclass(frozen=True)
class Toolchain:
    """The programs that a build needs."""

    cmake: str
    generator: str
    ninja: str | None
    compiler: str
    compiler_version: str  # its whole `--version` output
    nvcc: str | None
    compiler_arguments: tuple[str, ...] = ()  # such as `g++` behind the compiler `ccache`


def find_toolchain(*, cuda: bool = False) -> Toolchain:
    """Return CMake, a build program and a compiler, or raise NativeUnavailableError with what is missing."""
    compiler, *arguments = _find_compiler()
    cmake = _find_program("cmake")
    ninja = _find_program("ninja")
    if cmake is None or (ninja is None and _find_program("make") is None):
        raise NativeUnavailableError(
            "The tiled convolution is built by CMake with Ninja or make, and one of them is missing. "
            "Install them: pip install cmake ninja."
        )
    nvcc = _find_program("nvcc", "/usr/local/cuda/bin/nvcc") if cuda else None
    if cuda and nvcc is None:
        raise NativeUnavailableError(
            "A build with CUDA needs nvcc, which is neither on the path nor in /usr/local/cuda."
        )
    version = _version_of((compiler, *arguments))
    generator = "Ninja" if ninja else "Unix Makefiles"
    return Toolchain(cmake, generator, ninja, compiler, version, nvcc, tuple(arguments))


def _find_program(*names: str) -> str | None:
    """Return the first of these programs on the path or next to this Python, where pip puts CMake."""
    # An empty entry would be the working directory. An embedded Python may not know its own place.
    places = [os.environ.get("PATH", ""), os.path.dirname(sys.executable or "")]
    path = os.pathsep.join(filter(None, places)) or os.defpath
    return next(filter(None, (shutil.which(name, path=path) for name in names)), None)


def _find_compiler() -> list[str]:
    """Return the compiler that `$CXX` names, or a usual one, and its arguments."""
    value = os.environ.get("CXX", "").strip()
    if not value:
        compiler = _find_program("g++", "c++", "clang++")
        if compiler is None:
            raise NativeUnavailableError(
                "The tiled convolution needs a C++17 compiler; found none ($CXX, g++, c++, clang++). "
                "Install one (Debian, Ubuntu: apt install g++), or keep algorithm='auto': tf.nn.conv2d then."
            )
        return [compiler]
    compiler = _find_program(value)  # a path may hold spaces
    if compiler is not None:
        return [compiler]
    try:
        name, *arguments = shlex.split(value)
    except ValueError as error:
        raise NativeUnavailableError(f"CXX={value!r} cannot be read ({error}): {_REMEDY}.") from error
    compiler = _find_program(name)
    if compiler is None:
        raise NativeUnavailableError(
            f"The tiled convolution needs a C++17 compiler; CXX={value!r} names none: {_REMEDY}."
        )
    return [compiler, *arguments]


@functools.lru_cache(maxsize=8)
def _version_of(command: tuple[str, ...]) -> str:
    """Return a compiler's `--version` output; run once, as it may take seconds."""
    try:
        return run([*command, "--version"], limit_s=_VERSION_S)
    except NativeUnavailableError as error:
        raise NativeUnavailableError(f"The compiler does not say its version ({error}): {_REMEDY}.") from None


def run(
    command: Sequence[str], *, limit_s: float = _BUILD_S, environment: Mapping[str, str] | None = None
) -> str:
    """Run a program for at most `limit_s` seconds; return what it printed."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            env=environment,
            timeout=limit_s,
            check=False,
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise NativeUnavailableError(f"{shlex.join(command)} cannot be run here: {error}") from error
    if done.returncode != 0:
        tail = "\n".join(done.stdout.splitlines()[-40:])
        raise NativeUnavailableError(f"{shlex.join(command)} ended with status {done.returncode}\n{tail}")
    return done.stdout


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
    """Return a digest of everything that decides the binary."""
    digest = hashlib.sha256()
    parts = [
        *_tensorflow_flags(),
        toolchain.compiler,
        *toolchain.compiler_arguments,
        toolchain.compiler_version,
        toolchain.nvcc or "no CUDA",
    ]
    for part in [*parts, _cpu_description()]:
        # A path may have bytes that are no UTF-8.
        digest.update(part.encode("utf-8", "surrogateescape") + b"\0")
    digest.update(digest_sources().encode())
    return digest.hexdigest()[:24]


def _compile(toolchain: Toolchain, directory: Path) -> Path:
    """Configure and build in `directory`; return the library."""
    _, compile_flags, link_flags = _tensorflow_flags()
    configure = [toolchain.cmake, "-S", str(NATIVE_SOURCES), "-B", str(directory), "-G", toolchain.generator]
    compiler = ";".join([toolchain.compiler, *toolchain.compiler_arguments])
    configure += [f"-DCMAKE_CXX_COMPILER={compiler}", "-DCMAKE_BUILD_TYPE=Release"]
    configure += [f"-DTF_COMPILE_FLAGS={compile_flags}", f"-DTF_LINK_FLAGS={link_flags}"]
    if toolchain.ninja:
        configure.append(f"-DCMAKE_MAKE_PROGRAM={toolchain.ninja}")
    if toolchain.nvcc:
        configure += ["-DOVERLAP_CONV_CUDA=ON", f"-DCMAKE_CUDA_COMPILER={toolchain.nvcc}"]
    compile_all = [toolchain.cmake, "--build", str(directory), "--parallel", "--target", "overlap_conv"]
    # Compilers write next to what they build, so that they need no other temporary directory.
    environment = {**os.environ, "TMPDIR": str(directory)}
    try:
        run(configure, environment=environment)
        run(compile_all, environment=environment)
    except NativeUnavailableError as error:
        raise NativeUnavailableError(f"Building the tiled convolution failed: {error}") from None
    return directory / LIBRARY_NAME


def is_cached(*, cuda: bool = False) -> bool:
    """Whether the cache has what `build` would return; nothing is made or opened for writing."""
    try:
        # Without a cache directory there is no build, so the compiler need not be run.
        return cache_path().is_dir() and cached_library(cache_key(find_toolchain(cuda=cuda))) is not None
    except (NativeUnavailableError, OSError):
        return False


def build(*, cuda: bool = False, force: bool = False) -> Path:
    """Return the library for this machine, built if the cache lacks it or `force`. Any thread, any process.

    Raises NativeUnavailableError where it cannot be built.
    """
    toolchain = find_toolchain(cuda=cuda)
    try:
        key = cache_key(toolchain)
        # Look without the lock first: its file cannot be written in a read-only cache.
        library = None if force else cached_library(key)
        return library if library is not None else _build(toolchain, key, force=force)
    except OSError as error:
        raise NativeUnavailableError(
            f"The tiled convolution cannot be built ({error}); name another directory in "
            "OVERLAP_TRAIN_CACHE_DIR, or make room there."
        ) from error


def _build(toolchain: Toolchain, key: str, *, force: bool) -> Path:
    """Build under the lock, unless another process has done so meanwhile."""
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
