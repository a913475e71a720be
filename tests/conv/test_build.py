"""The build: found compiler, key, cache; once, the user's alone, and never waited for in vain."""

import contextlib
import dataclasses
import os
import sys
import threading

import pytest

from overlap_train.conv import build as conv_build
from overlap_train.conv import native_cache
from overlap_train.errors import NativeUnavailableError
from tests.conv.conftest import TOOLCHAIN


@pytest.mark.parametrize(
    ("program", "value", "message"),
    [
        (b"\xff\xfe\0", "{}", "cannot be run here"),  # of another machine
        (b"#!/bin/sh\nexit 3\n", "{}", "ended with status 3"),
        (b"#!/bin/sh\nexec sleep 99\n", "{}", "timed out after 0.3 seconds"),
        (b"#!/bin/sh\n", "{} 'g++", "CXX="),
        (b"#!/bin/sh\n", "no-such-compiler -m64", "CXX="),
    ],
)
def test_a_compiler_that_does_not_say_its_version_is_named(
    compiler, program, value, message, monkeypatch
) -> None:
    monkeypatch.setattr(conv_build, "_VERSION_S", 0.3 if "timed out" in message else 60.0)
    compiler(program, value)
    assert not conv_build.is_cached()
    with pytest.raises(NativeUnavailableError, match=r"set CXX to a C\+\+17 compiler") as caught:
        conv_build.find_toolchain()
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("value", "arguments"),
    [("{} g++", ("g++",)), ("{} -m64 '-DA=b c'", ("-m64", "-DA=b c")), ("'{}'", ()), ("{}", ())],
)
def test_arguments_behind_the_compiler_are_kept_apart_for_cmake_and_the_key(
    compiler, value, arguments, monkeypatch, tmp_path
) -> None:
    compiler(b"#!/bin/sh\necho \"$@\"; printf '\\377'\n", value)
    found = conv_build.find_toolchain()
    assert found.compiler == os.environ["CXX"].split()[0].strip("'")
    assert found.compiler_arguments == arguments
    # What is no text is a version all the same.
    assert found.compiler_version.split() == [*" ".join(arguments).split(), "--version", "\ufffd"]
    commands = []
    monkeypatch.setattr(conv_build, "run", lambda command, **_: commands.append(command))
    conv_build._compile(found, tmp_path)
    assert f"-DCMAKE_CXX_COMPILER={';'.join([str(tmp_path / 'compiler'), *arguments])}" in commands[0]
    alike = dataclasses.replace(found, compiler_version="1.0")
    others = [dataclasses.replace(alike, compiler_arguments=(*arguments, more)) for more in ("-g", "-O")]
    assert len({conv_build.cache_key(each) for each in (alike, *others)}) == 3


@pytest.mark.parametrize("path", [None, ""])
def test_no_program_of_the_working_directory_is_run(compiler, monkeypatch, tmp_path, path) -> None:
    compiler(b"#!/bin/sh\necho 1.0\n")
    monkeypatch.chdir(tmp_path / "bin")
    monkeypatch.setattr(sys, "executable", "")
    monkeypatch.setattr(os, "defpath", str(tmp_path / "nowhere"))
    if path is None:
        monkeypatch.delenv("PATH")
    else:
        monkeypatch.setenv("PATH", path)
    with pytest.raises(NativeUnavailableError, match="CMake"):
        conv_build.find_toolchain()


def test_concurrent_first_uses_build_once_for_the_user_alone(builds, monkeypatch, tmp_path) -> None:
    assert not conv_build.is_cached()
    assert list(tmp_path.iterdir()) == [], "asking makes nothing"
    threads = [threading.Thread(target=conv_build.build) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    library = conv_build.build()
    assert len(builds) == 1
    for path in (library, library.parent, conv_build.cache_directory()):
        assert path.stat().st_mode & 0o077 == 0
    os.mkfifo(library.parent / "manifest.json.new", 0o600)  # abandoned, and not waited for
    conv_build.build(force=True)
    assert conv_build.is_cached()
    assert len(builds) == 2


def test_failed_build_leaves_nothing_behind(builds, monkeypatch) -> None:
    def fail(toolchain, directory):
        raise NativeUnavailableError("no")

    monkeypatch.setattr(conv_build, "_compile", fail)
    with pytest.raises(NativeUnavailableError, match="no"):
        conv_build.build()
    assert [p for p in conv_build.cache_directory().iterdir() if p.is_dir()] == []


def link(library):
    other = library.replace(library.parent / "other.so")
    library.symlink_to(other)


def open_to_all(path):
    path.chmod(0o777)


def give_away(library):
    if os.getuid() != 0:
        pytest.skip("only root can give a file to somebody else")
    os.chown(library, 12345, -1)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda library: open_to_all(library.parents[1]), "alone"),
        (open_to_all, "alone"),
        (link, "link"),
        (give_away, "owner 12345"),
    ],
    ids=["open directory", "open library", "link", "of another user"],
)
def test_code_that_others_could_change_is_refused(builds, spoil, message) -> None:
    spoil(conv_build.build())
    with pytest.raises(NativeUnavailableError, match=message):
        conv_build.build()


# A cache that may be read only


def test_what_is_cached_is_found_where_nothing_can_be_written(builds, no_writing) -> None:
    library = conv_build.build()
    no_writing()
    assert conv_build.is_cached()
    assert conv_build.build() == library


def without_writing(monkeypatch, tmp_path, no_writing):
    conv_build.cache_directory()
    no_writing()


def without_room(monkeypatch, tmp_path, no_writing):
    def fail(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(conv_build, "install", fail)


def without_a_home(monkeypatch, tmp_path, no_writing):
    for name in ("OVERLAP_TRAIN_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "")


@pytest.mark.parametrize(
    ("without", "message"),
    [
        (without_writing, "OVERLAP_TRAIN_CACHE_DIR"),
        (without_room, "No space left.*OVERLAP_TRAIN_CACHE_DIR, or make room"),
        (without_a_home, "no home directory.*OVERLAP_TRAIN_CACHE_DIR"),
    ],
)
def test_a_build_without_a_place_names_the_remedy(
    builds, no_writing, monkeypatch, tmp_path, without, message
) -> None:
    without(monkeypatch, tmp_path, no_writing)
    assert not conv_build.is_cached()
    with pytest.raises(NativeUnavailableError, match=message):
        conv_build.build()
    assert not builds or without is without_room


# Entries that are not what they should be


def write(content):
    def put(path):
        path.write_bytes(content)
        path.chmod(0o600)

    return put


PUT = {
    "a pipe": lambda path: os.mkfifo(path, 0o600),
    "a folder": lambda path: path.mkdir(0o700),
    "nonsense": write(b"\xffdamage"),  # as long as the library
}


@pytest.mark.parametrize("put", PUT)
@pytest.mark.parametrize("name", [conv_build.LIBRARY_NAME, "manifest.json"])
def test_an_entry_that_is_no_build_is_not_waited_for(builds, put, name) -> None:
    entry = conv_build.build().parent / name
    entry.unlink()
    PUT[put](entry)
    assert not conv_build.is_cached()
    if put == "a folder":
        with pytest.raises(NativeUnavailableError, match="OVERLAP_TRAIN_CACHE_DIR"):
            conv_build.build()
    else:
        assert conv_build.build().read_bytes() == b"library"
        assert len(builds) == 2


@pytest.mark.parametrize("put", ["a pipe", "a folder", "another's lock"])
def test_what_stands_where_the_lock_should_or_is_held_is_no_lock(builds, put) -> None:
    lock = conv_build.cache_directory() / f"{conv_build.cache_key(TOOLCHAIN)}.lock"
    if put in PUT:
        PUT[put](lock)
        with pytest.raises(NativeUnavailableError, match=r"cannot be locked.*OVERLAP_TRAIN_CACHE_DIR"):
            conv_build.build()
        return
    held = native_cache.locked(lock, limit_s=0)
    with (
        held,
        contextlib.ExitStack() as second,
        pytest.raises(NativeUnavailableError, match="another process"),
    ):
        second.enter_context(native_cache.locked(lock, limit_s=0))


def test_key_follows_compiler_cuda_and_flags(builds, monkeypatch) -> None:
    keys = {conv_build.cache_key(TOOLCHAIN)}
    for change in ({"compiler_version": "c++ 2.0"}, {"nvcc": "/nvcc"}):
        keys.add(conv_build.cache_key(conv_build.Toolchain(**{**TOOLCHAIN.__dict__, **change})))
    monkeypatch.setattr(conv_build, "_tensorflow_flags", lambda: ("2.99", "-Dflag", ""))
    keys.add(conv_build.cache_key(TOOLCHAIN))
    assert len(keys) == 4
