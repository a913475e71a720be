"""Fixtures of the convolution's tests."""

import os

import pytest

from overlap_train.conv import build as conv_build
from overlap_train.conv import library
from overlap_train.errors import NativeUnavailableError

TOOLCHAIN = conv_build.Toolchain("cmake", "Ninja", "ninja", "c++", "c++ 1.0", None)


@pytest.fixture(scope="session")
def native() -> None:
    """Skips a test where the native convolution cannot be built; builds it otherwise."""
    try:
        library.load()
    except NativeUnavailableError as error:
        pytest.skip(f"no native convolution here: {error}")


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """Returns a function that writes a program and makes `$CXX` name it; CMake and Ninja are there."""
    (tmp_path / "bin").mkdir()
    for name in ("cmake", "ninja"):
        (tmp_path / "bin" / name).write_text("#!/bin/sh\n")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("OVERLAP_TRAIN_CACHE_DIR", str(tmp_path / "cache"))
    conv_build.cache_directory()
    path = tmp_path / "compiler"

    def write(content: bytes, value: str = "{}") -> None:
        path.write_bytes(content)
        path.chmod(0o755)
        monkeypatch.setenv("CXX", value.format(path))

    return write


@pytest.fixture
def builds(tmp_path, monkeypatch):
    """Counts compilations, which write a file at once."""
    count = []

    def compile_nothing(toolchain, directory):
        count.append(directory)
        library = directory / conv_build.LIBRARY_NAME
        library.write_bytes(b"library")
        return library

    monkeypatch.setenv("OVERLAP_TRAIN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(conv_build, "_compile", compile_nothing)
    monkeypatch.setattr(conv_build, "find_toolchain", lambda **_: TOOLCHAIN)
    return count


@pytest.fixture
def no_writing(monkeypatch):
    """Fails whatever is opened for writing or made, as a read-only file system does."""
    opened = os.open

    def read_only(path, flags, *arguments, **options):
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(30, "Read-only file system", str(path))
        return opened(path, flags, *arguments, **options)

    def refuse(*arguments, **options):
        raise OSError(30, "Read-only file system")

    def begin():
        monkeypatch.setattr(os, "open", read_only)
        for name in ("mkdir", "replace", "rename", "unlink", "chmod"):
            monkeypatch.setattr(os, name, refuse)

    return begin
