"""The compiler that is found: asked once, ended where it hangs, and named where it cannot be used."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from overlap_train.conv import build as conv_build
from overlap_train.conv import toolchain
from overlap_train.errors import NativeUnavailableError


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


def test_a_compiler_for_another_machine_is_named(compiler) -> None:
    compiler(b"\xff\xfe\0")
    assert "cannot be run here" in refusal()


def test_a_compiler_that_fails_is_named(compiler) -> None:
    compiler(b"#!/bin/sh\nexit 3\n")
    assert "ended with status 3" in refusal()


def test_a_compiler_that_never_ends_is_ended_with_what_it_started(compiler, tmp_path, monkeypatch) -> None:
    # Both wait for a writer of the pipe, who never comes.
    os.mkfifo(tmp_path / "never")
    waiting = f"cat {tmp_path}/never"
    compiler(f"#!/bin/sh\n({waiting}) & echo $! > {tmp_path}/pid\n{waiting}\n".encode())
    monkeypatch.setattr(toolchain, "_VERSION_S", 0.3)
    assert "did not say its version" in refusal()
    while runs(int((tmp_path / "pid").read_text())):  # until the signal has arrived
        pass


def test_a_compiler_that_prints_without_end_is_ended(compiler) -> None:
    compiler(b"#!/bin/sh\nexec yes\n")
    assert "prints without end" in refusal()


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
