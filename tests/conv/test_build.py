"""The build and its cache. Compilation itself is replaced: these are tests of locks, owners and keys."""

from __future__ import annotations

import os
import threading

import pytest

from overlap_train.conv import build as conv_build
from overlap_train.errors import NativeUnavailableError

TOOLCHAIN = conv_build.Toolchain("cmake", "Ninja", "ninja", "c++", "c++ 1.0", None)


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


def test_second_build_comes_from_the_cache(builds) -> None:
    assert conv_build.build() == conv_build.build()
    assert len(builds) == 1
    conv_build.build(force=True)
    assert len(builds) == 2


def test_concurrent_first_uses_build_once(builds) -> None:
    threads = [threading.Thread(target=conv_build.build) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(builds) == 1


def test_cache_is_private(builds) -> None:
    library = conv_build.build()
    assert library.stat().st_mode & 0o077 == 0
    assert library.parent.stat().st_mode & 0o077 == 0
    assert conv_build.cache_directory().stat().st_mode & 0o077 == 0


def test_directory_that_others_may_write_is_refused(builds) -> None:
    conv_build.cache_directory().chmod(0o777)
    with pytest.raises(NativeUnavailableError, match="alone"):
        conv_build.build()


def test_library_that_others_may_write_is_refused(builds) -> None:
    conv_build.build().chmod(0o777)
    with pytest.raises(NativeUnavailableError, match="alone"):
        conv_build.build()


def test_link_in_place_of_the_library_is_refused(builds, tmp_path) -> None:
    library = conv_build.build()
    other = tmp_path / "other.so"
    other.write_bytes(b"library")
    library.unlink()
    library.symlink_to(other)
    with pytest.raises(NativeUnavailableError, match="link"):
        conv_build.build()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to somebody else")
def test_library_of_another_user_is_refused(builds) -> None:
    os.chown(conv_build.build(), 12345, -1)
    with pytest.raises(NativeUnavailableError, match="owner 12345"):
        conv_build.build()


def test_damaged_library_is_built_again(builds) -> None:
    library = conv_build.build()
    library.write_bytes(b"damaged")
    assert conv_build.build().read_bytes() == b"library"
    assert len(builds) == 2


def test_library_under_a_wrong_key_is_built_again(builds) -> None:
    library = conv_build.build()
    manifest = library.parent / "manifest.json"
    manifest.write_text(manifest.read_text().replace(library.parent.name, "0" * 24))
    conv_build.build()
    assert len(builds) == 2


def test_key_follows_compiler_cuda_and_flags(builds, monkeypatch) -> None:
    keys = {conv_build.cache_key(TOOLCHAIN)}
    for change in ({"compiler_version": "c++ 2.0"}, {"nvcc": "/nvcc"}):
        keys.add(conv_build.cache_key(conv_build.Toolchain(**{**TOOLCHAIN.__dict__, **change})))
    monkeypatch.setattr(conv_build, "_tensorflow_flags", lambda: ("2.99", "-Dflag", ""))
    keys.add(conv_build.cache_key(TOOLCHAIN))
    assert len(keys) == 4


def test_failed_build_leaves_nothing_behind(builds, monkeypatch) -> None:
    def fail(toolchain, directory):
        raise NativeUnavailableError("no")

    monkeypatch.setattr(conv_build, "_compile", fail)
    with pytest.raises(NativeUnavailableError, match="no"):
        conv_build.build()
    assert [p for p in conv_build.cache_directory().iterdir() if p.is_dir()] == []


def test_missing_compiler_is_named_with_its_remedy(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(conv_build.sys, "executable", str(tmp_path / "python"))
    with pytest.raises(NativeUnavailableError, match="apt install g"):
        conv_build.find_toolchain()


def test_compiler_output_is_in_the_error(tmp_path) -> None:
    with pytest.raises(NativeUnavailableError, match="this went wrong"):
        conv_build._run(["sh", "-c", "echo this went wrong; exit 3"], [])
