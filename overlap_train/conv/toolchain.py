"""The programs that build the native convolution, found and asked for their versions within limits.

What `$CXX` names may be anything: arguments behind a launcher, a program for another machine, one that never
ends or prints without end. Any thread.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import selectors
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from overlap_train.errors import NativeUnavailableError

__all__ = ["Toolchain", "find_toolchain", "run_limited"]

_VERSION_S = 5.0
_VERSION_BYTES = 1 << 16
# What this process or the system lacks at the moment.
_PASSING = (errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
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
    """Finds CMake, a build program and a compiler; raises NativeUnavailableError, naming what is missing."""
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
    version = _version_of((compiler, *arguments), _stamp(compiler))
    if isinstance(version, NativeUnavailableError):
        raise NativeUnavailableError(str(version))
    generator = "Ninja" if ninja else "Unix Makefiles"
    return Toolchain(cmake, generator, ninja, compiler, version, nvcc, tuple(arguments))


def _find_program(*names: str) -> str | None:
    """Returns the first of the names found on the path or next to this Python, where pip puts CMake.

    Of a Python inside another program it may be unknown where it lies. An empty place would be the working
    directory.
    """
    places = [os.environ.get("PATH", ""), os.path.dirname(sys.executable or "")]
    for name in names:
        found = shutil.which(name, path=os.pathsep.join(filter(None, places)) or os.defpath)
        if found:
            return found
    return None


def _find_compiler() -> list[str]:
    """Returns the program that `$CXX` names, or a usual one, and its arguments."""
    chosen = os.environ.get("CXX", "").strip()
    if not chosen:
        compiler = _find_program("g++", "c++", "clang++")
        if compiler is None:
            raise NativeUnavailableError(
                "The tiled convolution needs a C++17 compiler; found none ($CXX, g++, c++, clang++). "
                "Install one (Debian, Ubuntu: apt install g++), or keep algorithm='auto': tf.nn.conv2d then."
            )
        return [compiler]
    whole = _find_program(chosen)  # a path may hold spaces
    if whole is not None:
        return [whole]
    try:
        name, *arguments = shlex.split(chosen)
    except ValueError as error:
        raise NativeUnavailableError(f"CXX={chosen!r} cannot be read ({error}): {_REMEDY}.") from error
    compiler = _find_program(name)
    if compiler is None:
        raise NativeUnavailableError(
            f"The tiled convolution needs a C++17 compiler; CXX={chosen!r} names none: {_REMEDY}."
        )
    return [compiler, *arguments]


def _stamp(program: str) -> tuple[int, int, int]:
    """Returns what changes when a program is replaced."""
    with contextlib.suppress(OSError):
        status = os.stat(program)
        return status.st_ino, status.st_mtime_ns, status.st_size
    return 0, 0, 0


@functools.lru_cache(maxsize=8)
def _version_of(command: tuple[str, ...], stamp: tuple[int, int, int]) -> str | NativeUnavailableError:
    """Returns what a compiler says of its version, or why it says nothing; asked once, as that may last."""
    del stamp
    shown = shlex.join(command)
    output = bytearray()

    def take(chunk: bytes) -> None:
        output.extend(chunk)
        if len(output) > _VERSION_BYTES:
            raise NativeUnavailableError(f"The compiler {shown} prints without end when run with --version")

    try:
        status = run_limited([*command, "--version"], limit_s=_VERSION_S, take=take)
    except TimeoutError:
        return NativeUnavailableError(
            f"The compiler {shown} did not say its version within {_VERSION_S:g} s: {_REMEDY}."
        )
    except (OSError, ValueError) as error:
        refusal = NativeUnavailableError(f"The compiler {shown} cannot be run here ({error}): {_REMEDY}.")
        if getattr(error, "errno", None) in _PASSING:
            raise refusal from error  # what is raised is not remembered
        return refusal
    except NativeUnavailableError as error:
        return NativeUnavailableError(f"{error}: {_REMEDY}.")
    if status != 0:
        return NativeUnavailableError(
            f"The compiler {shown} ended with status {status} when asked for its version: {_REMEDY}."
        )
    return output.decode("utf-8", errors="replace")


def run_limited(
    command: Sequence[str],
    *,
    limit_s: float,
    take: Callable[[bytes], None],
    environment: Mapping[str, str] | None = None,
) -> int:
    """Runs a program, with all that it starts, for so long at most; returns its exit status."""
    deadline_s = time.monotonic() + limit_s
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # so that what it starts can be ended with it
        env=environment,
    )
    try:
        for chunk in _output(process, deadline_s):
            take(chunk)
        # It has closed its output, and may go on for all that.
        return process.wait(max(0.1, deadline_s - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"{shlex.join(command)} took longer than {limit_s:g} s") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _output(process: subprocess.Popen[bytes], deadline_s: float) -> Iterator[bytes]:
    """Yields what a program prints, as it comes; raises TimeoutExpired once the deadline has passed."""
    assert process.stdout is not None
    with process.stdout, selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not selector.select(left_s):
                raise subprocess.TimeoutExpired(process.args, left_s)
            chunk = os.read(process.stdout.fileno(), 1 << 16)
            if not chunk:
                return
            yield chunk
