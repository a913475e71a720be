"""Builds the native convolution with CMake, into a cache that belongs to the user alone.

    python -m overlap_train.conv.build [--cuda] [--force]

The same happens by itself on first use. A build is kept under a key made of everything that decides the
binary: TensorFlow's version and flags, the compiler and its version, the CPU, the sources. Several processes
that need one build at the same time make it once: the first takes a lock, the others wait for it and find the
result.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from overlap_train.errors import NativeUnavailableError

__all__ = ["Toolchain", "build", "cache_directory", "cached_library", "find_toolchain", "is_cached"]

NATIVE_SOURCES = Path(__file__).parent / "native"
LIBRARY_NAME = "liboverlap_conv.so"
_MANIFEST = "manifest.json"
_PROGRESS = re.compile(r"^\[\s*(\d+)(?:/(\d+)|%)\]")


@dataclass(frozen=True)
class Toolchain:
    """The programs that a build needs.

    Attributes:
        cmake: path of CMake, 3.24 or newer.
        generator: CMake's generator, "Ninja" or "Unix Makefiles".
        ninja: path of Ninja, or None to use make.
        compiler: path of the C++ compiler.
        compiler_version: its whole `--version` output.
        nvcc: path of CUDA's compiler, or None for a build without CUDA.
    """

    cmake: str
    generator: str
    ninja: str | None
    compiler: str
    compiler_version: str
    nvcc: str | None


def _find_program(*names: str) -> str | None:
    """The first of the names found on the path or beside this Python (where pip puts cmake and ninja)."""
    places = os.pathsep.join([os.environ.get("PATH", ""), str(Path(sys.executable).parent)])
    for name in names:
        found = shutil.which(name, path=places)
        if found:
            return found
    return None


def find_toolchain(*, cuda: bool = False) -> Toolchain:
    """Finds CMake, a build program and a compiler.

    Args:
        cuda: whether nvcc is needed too.

    Raises:
        NativeUnavailableError: something is missing; the message names it and the remedy.
    """
    compiler = (
        _find_program(os.environ["CXX"]) if os.environ.get("CXX") else _find_program("g++", "c++", "clang++")
    )
    if compiler is None:
        raise NativeUnavailableError(
            "The tiled convolution needs a C++17 compiler; found none ($CXX, g++, c++, clang++). "
            "Install one (Debian, Ubuntu: apt install g++), or keep algorithm='auto': tf.nn.conv2d then."
        )
    cmake = _find_program("cmake")
    ninja = _find_program("ninja")
    if cmake is None or (ninja is None and _find_program("make") is None):
        raise NativeUnavailableError(
            "The tiled convolution is built by CMake with Ninja or make, and one of them is missing. "
            "Install them: pip install 'overlap_train[conv]'."
        )
    nvcc = _find_program("nvcc", "/usr/local/cuda/bin/nvcc") if cuda else None
    if cuda and nvcc is None:
        raise NativeUnavailableError(
            "A build with CUDA needs nvcc, which is neither on the path nor in /usr/local/cuda."
        )
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
    return Toolchain(cmake, "Ninja" if ninja else "Unix Makefiles", ninja, compiler, version, nvcc)


def cache_directory() -> Path:
    """The directory of all builds, made if need be: `$OVERLAP_TRAIN_CACHE_DIR`, or the user's cache
    directory.

    Raises:
        NativeUnavailableError: it cannot be made, or somebody else could write to it.
    """
    directory = _cache_path()
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise NativeUnavailableError(
            f"The cache directory {directory} cannot be made ({error}); "
            "name another in OVERLAP_TRAIN_CACHE_DIR."
        ) from error
    _check_private(directory)
    return directory


def _cache_path() -> Path:
    chosen = os.environ.get("OVERLAP_TRAIN_CACHE_DIR")
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return (Path(chosen) if chosen else Path(base) / "overlap_train") / "conv"


def _check_private(path: Path) -> None:
    """Refuses what another user owns or may write: a library from there would run as us."""
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise NativeUnavailableError(
            f"{path} must belong to user {os.getuid()} alone (owner {status.st_uid}, mode "
            f"{stat.S_IMODE(status.st_mode):04o}, no link), because code is loaded from it. "
            "Remove it, or name another place in OVERLAP_TRAIN_CACHE_DIR."
        )


def _cpu_description() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
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
        toolchain.compiler_version,
        toolchain.nvcc or "no CUDA",
    ]
    for part in [*parts, _cpu_description()]:
        digest.update(part.encode() + b"\0")
    for source in sorted(p for p in NATIVE_SOURCES.iterdir() if p.is_file()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()[:24]


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def cached_library(key: str) -> Path | None:
    """The library built under `key`, if it is there, ours and whole.

    Raises:
        NativeUnavailableError: it is there, but not ours alone.
    """
    directory = cache_directory() / key
    library, manifest = directory / LIBRARY_NAME, directory / _MANIFEST
    if not manifest.exists():
        return None
    for path in (directory, library, manifest):
        if not path.exists():
            return None
        _check_private(path)
    try:
        recorded = json.loads(manifest.read_text())
    except ValueError:
        return None
    return library if recorded == {"key": key, "sha256": _sha256(library)} else None


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds an exclusive lock between processes; the kernel drops it when its holder dies."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _run(command: list[str], log: list[str]) -> None:
    """Runs a step of the build, its progress shown on one line where stderr is a terminal."""
    show = sys.stderr.isatty()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            log.append(line)
            if show and _PROGRESS.match(line):
                print(f"\r  {line.split(']')[0]}]", end="", file=sys.stderr, flush=True)
    if show:
        print("\r", end="", file=sys.stderr)
    if process.returncode != 0:
        tail = "".join(log[-40:])
        raise NativeUnavailableError(f"Building the tiled convolution failed: {' '.join(command)}\n{tail}")


def _compile(toolchain: Toolchain, directory: Path) -> Path:
    """Configures and builds in `directory`; returns the library."""
    _, compile_flags, link_flags = _tensorflow_flags()
    configure = [toolchain.cmake, "-S", str(NATIVE_SOURCES), "-B", str(directory), "-G", toolchain.generator]
    configure += [f"-DCMAKE_CXX_COMPILER={toolchain.compiler}", "-DCMAKE_BUILD_TYPE=Release"]
    configure += [f"-DTF_COMPILE_FLAGS={compile_flags}", f"-DTF_LINK_FLAGS={link_flags}"]
    if toolchain.ninja:
        configure.append(f"-DCMAKE_MAKE_PROGRAM={toolchain.ninja}")
    if toolchain.nvcc:
        configure += ["-DOVERLAP_CONV_CUDA=ON", f"-DCMAKE_CUDA_COMPILER={toolchain.nvcc}"]
    log: list[str] = []
    _run(configure, log)
    _run([toolchain.cmake, "--build", str(directory), "--parallel", "--target", "overlap_conv"], log)
    return directory / LIBRARY_NAME


def _install(library: Path, directory: Path, key: str) -> Path:
    """Moves a finished library into the cache; the manifest goes last and makes it valid."""
    directory.mkdir(mode=0o700, exist_ok=True)
    library.chmod(0o700)
    os.replace(library, directory / LIBRARY_NAME)
    manifest = directory / f"{_MANIFEST}.new"
    manifest.write_text(json.dumps({"key": key, "sha256": _sha256(directory / LIBRARY_NAME)}))
    manifest.chmod(0o600)
    os.replace(manifest, directory / _MANIFEST)
    return directory / LIBRARY_NAME


def is_cached(*, cuda: bool = False) -> bool:
    """Whether `build` would find its result in the cache. Makes no directory."""
    try:
        key = cache_key(find_toolchain(cuda=cuda))
        return _cache_path().is_dir() and cached_library(key) is not None
    except NativeUnavailableError:
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
    key = cache_key(toolchain)
    cache = cache_directory()
    with _locked(cache / f"{key}.lock"):
        library = None if force else cached_library(key)
        if library is not None:
            return library
        print(
            "overlap_train: building the tiled convolution (once; a minute or two) ...",
            file=sys.stderr,
            flush=True,
        )
        with tempfile.TemporaryDirectory(prefix="build-", dir=cache) as directory:
            library = _install(_compile(toolchain, Path(directory)), cache / key, key)
        print(f"overlap_train: built {library}", file=sys.stderr, flush=True)
        return library


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m overlap_train.conv.build", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--cuda", action="store_true", help="with the CUDA kernels (needs nvcc)")
    parser.add_argument("--force", action="store_true", help="build even if the cache has it")
    options = parser.parse_args(arguments)
    try:
        print(build(cuda=options.cuda, force=options.force))
    except NativeUnavailableError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
