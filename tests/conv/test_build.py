"""The build: once, under a key of all that it depends on. Compilation itself is replaced."""

from __future__ import annotations

import dataclasses
import os
import threading

import pytest

from overlap_train.conv import build as conv_build
from overlap_train.errors import NativeUnavailableError
from tests.conv.conftest import TOOLCHAIN


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


def test_key_follows_compiler_cuda_and_flags(builds, monkeypatch) -> None:
    keys = {conv_build.cache_key(TOOLCHAIN)}
    for change in ({"compiler_version": "c++ 2.0"}, {"nvcc": "/nvcc"}):
        keys.add(conv_build.cache_key(conv_build.Toolchain(**{**TOOLCHAIN.__dict__, **change})))
    monkeypatch.setattr(conv_build, "_tensorflow_flags", lambda: ("2.99", "-Dflag", ""))
    keys.add(conv_build.cache_key(TOOLCHAIN))
    assert len(keys) == 4


def test_a_compiler_whose_path_is_no_text_has_a_key(builds, monkeypatch) -> None:
    found = [os.fsdecode(b"/opt/caf\xe9/g++"), os.fsdecode(b"/opt/caf\xe8/g++")]
    chosen = [dataclasses.replace(TOOLCHAIN, compiler=path) for path in found]
    chosen.append(dataclasses.replace(TOOLCHAIN, compiler_arguments=(found[0],)))
    assert len({conv_build.cache_key(each) for each in chosen}) == 3
    monkeypatch.setattr(conv_build, "find_toolchain", lambda **_: chosen[0])
    assert not conv_build.is_cached()
    assert conv_build.build() == conv_build.build()
    assert len(builds) == 1


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


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ("exit 3", "ended with status 3"),
        ("kill -XFSZ $$", "ended with SIGXFSZ"),
        ("kill -50 $$", "ended with signal 50"),
    ],
    ids=["status", "signal", "signal without a name"],
)
def test_how_a_silent_compiler_ended_is_in_the_error(end, said) -> None:
    with pytest.raises(NativeUnavailableError, match=said):
        conv_build._run(["sh", "-c", end], [])
