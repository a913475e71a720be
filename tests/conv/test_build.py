"""The build and its cache. Compilation itself is replaced: these are tests of locks, owners and keys."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import keras
import numpy as np
import pytest

from overlap_train import ExecutionPlan, Trainer, accelerate
from overlap_train.conv import build as conv_build
from overlap_train.conv import library, native_cache, toolchain
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


# A cache that may be read only


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


# Entries that are not what they should be


def put_pipe(path):
    os.mkfifo(path, 0o600)


def put_folder(path):
    path.mkdir(0o700)


def put_nonsense(path):
    path.write_bytes(b"\xff\0" * 10)
    path.chmod(0o600)


def put_deep_json(path):
    path.write_text("[" * 60_000)
    path.chmod(0o600)


def put_nothing(path):
    pass


@pytest.mark.parametrize("put", [put_pipe, put_folder, put_nonsense, put_deep_json, put_nothing])
@pytest.mark.parametrize("name", [conv_build.LIBRARY_NAME, "manifest.json"])
def test_an_entry_that_is_no_build_is_not_waited_for(builds, put, name) -> None:
    entry = conv_build.build().parent / name
    entry.unlink()
    put(entry)
    assert not conv_build.is_cached()
    if put is put_folder:
        with pytest.raises(NativeUnavailableError, match="OVERLAP_TRAIN_CACHE_DIR"):
            conv_build.build()
    else:
        assert conv_build.build().read_bytes() == b"library"
        assert len(builds) == 2


@pytest.mark.parametrize("put", [put_pipe, put_folder])
def test_what_stands_where_the_lock_should_is_no_lock(builds, put) -> None:
    put(conv_build.cache_directory() / f"{conv_build.cache_key(TOOLCHAIN)}.lock")
    with pytest.raises(NativeUnavailableError, match=r"cannot be locked.*OVERLAP_TRAIN_CACHE_DIR"):
        conv_build.build()


def test_an_abandoned_manifest_that_is_a_pipe_is_not_waited_for(builds) -> None:
    library = conv_build.build()
    put_pipe(library.parent / "manifest.json.new")
    conv_build.build(force=True)
    assert conv_build.is_cached()


def test_a_lock_that_another_keeps_is_given_up(builds) -> None:
    lock = conv_build.cache_directory() / "key.lock"
    with native_cache.locked(lock, limit_s=0), pytest.raises(NativeUnavailableError, match="another process"):  # noqa: SIM117
        with native_cache.locked(lock, limit_s=0):
            pass


# A compiler that is none


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


# What a fit sees of all this: at most a message


def convolutional():
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((6, 6, 2)), keras.layers.Conv2D(3, 3), keras.layers.Flatten(), keras.layers.Dense(2)]
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


X, Y = np.ones((16, 6, 6, 2), "float32"), np.zeros(16, "int32")


@pytest.fixture
def fresh_library(monkeypatch):
    """A process that has not looked for the library yet."""
    monkeypatch.setattr(library, "_state", library._State())


@pytest.mark.parametrize("content", [b"\xff\xfe\0", b"#!/bin/sh\nexit 3\n"])
def test_fit_does_not_notice_a_compiler_that_does_not_run(compiler, fresh_library, content) -> None:
    compiler(content)
    assert len(Trainer(convolutional()).fit(X, Y, epochs=2, verbose=0).history["loss"]) == 2
    with pytest.raises(NativeUnavailableError):
        library.load()
    plan = ExecutionPlan(kernels="fast")
    assert len(Trainer(convolutional(), execution=plan).fit(X, Y, verbose=0).history["loss"]) == 1


@pytest.mark.parametrize("content", [b"\x7fELF", b"", b"no library"])
def test_a_cached_library_that_cannot_be_loaded_is_not_used(
    builds, fresh_library, no_writing, monkeypatch, content
) -> None:
    compile_nothing = conv_build._compile

    def compile_nonsense(*arguments):
        found = compile_nothing(*arguments)
        found.write_bytes(content)
        return found

    monkeypatch.setattr(conv_build, "_compile", compile_nonsense)
    conv_build.build()
    no_writing()
    assert library.is_built()
    assert not library.is_available()
    with pytest.raises(NativeUnavailableError, match="--force"):
        library.load()
    assert accelerate(convolutional(), verbose=0).predict(X, verbose=0).shape == (16, 2)


def test_a_library_of_something_else_is_not_used(fresh_library, monkeypatch) -> None:
    import ctypes.util

    other = ctypes.util.find_library("m") or pytest.skip("there is no libm to load")
    monkeypatch.setattr(conv_build, "build", lambda **_: other)
    with pytest.raises(NativeUnavailableError, match="cannot load libm"):
        library.load()
