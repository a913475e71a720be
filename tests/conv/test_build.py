"""The build: found compiler, key, cache; once, the user's alone, and never waited for in vain."""

from __future__ import annotations

import dataclasses
import os
import sys
import threading
from pathlib import Path

import pytest

from overlap_train.conv import build as conv_build
from overlap_train.conv import native_cache
from overlap_train.errors import NativeUnavailableError
from tests.conv.conftest import TOOLCHAIN


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def refusal() -> str:
    assert not conv_build.is_cached()
    with pytest.raises(NativeUnavailableError, match=r"set CXX to a C\+\+17 compiler") as caught:
        conv_build.find_toolchain()
    return str(caught.value)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (b"\xff\xfe\0", "cannot be run here"),  # of another machine
        (b"#!/bin/sh\nexit 3\n", "ended with status 3"),
        (b"#!/bin/sh\nexec yes\n", "prints without end"),
    ],
)
def test_a_compiler_that_does_not_say_its_version_is_named(compiler, program, message) -> None:
    compiler(program)
    assert message in refusal()


def test_a_compiler_that_never_ends_is_ended_with_what_it_started(compiler, tmp_path, monkeypatch) -> None:
    # Both wait for a writer of the pipe, who never comes.
    os.mkfifo(tmp_path / "never")
    waiting = f"cat {tmp_path}/never"
    compiler(f"#!/bin/sh\n({waiting}) & echo $! > {tmp_path}/pid\n{waiting}\n".encode())
    monkeypatch.setattr(conv_build, "_VERSION_S", 0.3)
    assert "did not say its version" in refusal()
    while runs(int((tmp_path / "pid").read_text())):  # until the signal has arrived
        pass


def test_a_compiler_that_does_not_run_is_asked_once(compiler, tmp_path) -> None:
    compiler(f"#!/bin/sh\necho asked >> {tmp_path}/log\nexit 1\n".encode())
    for _ in range(3):
        refusal()
    assert (tmp_path / "log").read_text() == "asked\n"


def test_a_version_that_is_no_text_is_a_version(compiler) -> None:
    compiler(b"#!/bin/sh\nprintf 'c++ \\377\\376 1.0'\n")
    assert conv_build.find_toolchain().compiler_version == "c++ \ufffd\ufffd 1.0"


@pytest.mark.parametrize(
    ("value", "arguments"),
    [("{} g++", ("g++",)), ("{} -m64 '-DA=b c'", ("-m64", "-DA=b c")), ("'{}'", ()), ("{}", ())],
)
def test_arguments_behind_the_compiler_are_kept_apart(compiler, value, arguments) -> None:
    compiler(b'#!/bin/sh\necho "$@"\n', value)
    found = conv_build.find_toolchain()
    assert found.compiler == os.environ["CXX"].split()[0].strip("'")
    assert found.compiler_arguments == arguments
    assert found.compiler_version.split() == [*" ".join(arguments).split(), "--version"]


def test_arguments_of_the_compiler_reach_cmake(compiler, monkeypatch, tmp_path) -> None:
    compiler(b"#!/bin/sh\n", "{} -m64")
    commands = []
    monkeypatch.setattr(conv_build, "_run", lambda command, *_: commands.append(command))
    conv_build._compile(conv_build.find_toolchain(), tmp_path)
    assert f"-DCMAKE_CXX_COMPILER={tmp_path}/compiler;-m64" in commands[0]


def test_arguments_of_the_compiler_are_in_the_key(compiler) -> None:
    keys = set()
    for value in ("{}", "{} -m64", "{} -m64 -g"):
        compiler(b"#!/bin/sh\n", value)
        keys.add(conv_build.cache_key(conv_build.find_toolchain()))
    assert len(keys) == 3


@pytest.mark.parametrize("value", ["{} 'g++", "no-such-compiler -m64"])
def test_a_value_that_names_no_compiler_is_shown(compiler, value) -> None:
    compiler(b"#!/bin/sh\n", value)
    assert "CXX=" in refusal()


@pytest.mark.parametrize("executable", [None, ""])
def test_a_python_that_does_not_know_where_it_lies_looks_on_the_path_alone(
    compiler, monkeypatch, tmp_path, executable
) -> None:
    compiler(b"#!/bin/sh\necho 1.0\n")
    monkeypatch.setattr(sys, "executable", executable)
    assert conv_build.find_toolchain().cmake == str(tmp_path / "bin" / "cmake")
    assert not conv_build.is_cached()


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


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ("echo this went wrong; exit 3", "ended with status 3\nthis went wrong"),
        ("kill -XFSZ $$", "ended with SIGXFSZ"),
        ("kill -50 $$", "ended with signal 50"),
    ],
    ids=["status", "signal", "signal without a name"],
)
def test_how_a_compiler_ended_is_in_the_error(end, said) -> None:
    with pytest.raises(NativeUnavailableError, match=said):
        conv_build._run(["sh", "-c", end], [])


def test_cache_is_private(builds) -> None:
    library = conv_build.build()
    assert library.stat().st_mode & 0o077 == 0
    assert library.parent.stat().st_mode & 0o077 == 0
    assert conv_build.cache_directory().stat().st_mode & 0o077 == 0


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


def rename_key(library):
    manifest = library.parent / "manifest.json"
    manifest.write_text(manifest.read_text().replace(library.parent.name, "0" * 24))


@pytest.mark.parametrize("spoil", [lambda library: library.write_bytes(b"damaged"), rename_key])
def test_a_damaged_library_and_one_of_another_key_are_built_again(builds, spoil) -> None:
    spoil(conv_build.build())
    assert conv_build.build().read_bytes() == b"library"
    assert len(builds) == 2


# A cache that may be read only


def test_what_is_cached_is_found_where_nothing_can_be_written(builds, no_writing) -> None:
    library = conv_build.build()
    no_writing()
    assert conv_build.is_cached()
    assert conv_build.build() == library


def test_a_build_where_nothing_can_be_written_names_the_remedy(builds, no_writing) -> None:
    conv_build.cache_directory()
    no_writing()
    assert not conv_build.is_cached()
    with pytest.raises(NativeUnavailableError, match="OVERLAP_TRAIN_CACHE_DIR"):
        conv_build.build()
    assert not builds


def test_asking_whether_there_is_a_build_makes_nothing(builds, tmp_path) -> None:
    assert not conv_build.is_cached()
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_names_the_remedy(builds, monkeypatch) -> None:
    def fail(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(conv_build, "install", fail)
    with pytest.raises(NativeUnavailableError, match=r"No space left.*OVERLAP_TRAIN_CACHE_DIR, or make room"):
        conv_build.build()


def test_without_a_home_a_build_names_the_remedy(builds, monkeypatch) -> None:
    for name in ("OVERLAP_TRAIN_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "")
    assert not conv_build.is_cached()
    with pytest.raises(NativeUnavailableError, match=r"no home directory.*OVERLAP_TRAIN_CACHE_DIR"):
        conv_build.build()


def test_a_relative_cache_without_a_working_directory_names_the_remedy(builds, monkeypatch, tmp_path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    monkeypatch.setenv("OVERLAP_TRAIN_CACHE_DIR", "cache")
    gone.rmdir()
    assert not conv_build.is_cached()
    for ask in (conv_build.build, conv_build.cache_directory):
        with pytest.raises(NativeUnavailableError, match=r"working directory is gone.* absolute path"):
            ask()


# Entries that are not what they should be


def write(content):
    def put(path):
        path.write_bytes(content)
        path.chmod(0o600)

    return put


PUT = {
    "a pipe": lambda path: os.mkfifo(path, 0o600),
    "a folder": lambda path: path.mkdir(0o700),
    "nonsense": write(b"\xff\0" * 10),
    "deep JSON": write(b"[" * 60_000),
    "nothing": lambda path: None,
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


@pytest.mark.parametrize("put", ["a pipe", "a folder"])
def test_what_stands_where_the_lock_should_is_no_lock(builds, put) -> None:
    PUT[put](conv_build.cache_directory() / f"{conv_build.cache_key(TOOLCHAIN)}.lock")
    with pytest.raises(NativeUnavailableError, match=r"cannot be locked.*OVERLAP_TRAIN_CACHE_DIR"):
        conv_build.build()


def test_an_abandoned_manifest_that_is_a_pipe_is_not_waited_for(builds) -> None:
    library = conv_build.build()
    PUT["a pipe"](library.parent / "manifest.json.new")
    conv_build.build(force=True)
    assert conv_build.is_cached()


def test_a_lock_that_another_keeps_is_given_up(builds) -> None:
    lock = conv_build.cache_directory() / "key.lock"
    with native_cache.locked(lock, limit_s=0), pytest.raises(NativeUnavailableError, match="another process"):  # noqa: SIM117
        with native_cache.locked(lock, limit_s=0):
            pass
