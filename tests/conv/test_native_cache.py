"""The cache of builds: the user's alone, read where nothing can be written, and never waited for in vain."""

from __future__ import annotations

import os

import pytest

from overlap_train.conv import build as conv_build
from overlap_train.conv import native_cache
from overlap_train.errors import NativeUnavailableError
from tests.conv.conftest import TOOLCHAIN


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
