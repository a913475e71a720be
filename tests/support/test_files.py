"""Files are opened with care, replaced whole and locked between processes."""

import os
import stat
import sys
from pathlib import Path

import pytest

from overlap_train._support import files
from overlap_train._support.files import open_lock, try_lock, wait_for_lock

ODD = {
    "pipe": os.mkfifo,
    "folder": os.mkdir,
    "link to a device": lambda path: path.symlink_to("/dev/zero"),
    "dangling link": lambda path: path.symlink_to("nowhere"),
    "circle": lambda path: path.symlink_to(path.name),
}


@pytest.fixture
def short_path(tmp_path, monkeypatch):
    """A path in the working directory."""
    monkeypatch.chdir(tmp_path)
    return Path("entry")


@pytest.mark.parametrize("make", ODD.values(), ids=ODD)
def test_what_is_no_regular_file_is_refused_at_once(short_path, make):
    make(short_path)
    before = len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0
    with pytest.raises(OSError):
        files.read_regular(short_path, most_bytes=100)
    if sys.platform == "linux":
        assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_that_is_too_large_is_not_read(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"x" * 100)
    assert len(files.read_regular(file, most_bytes=100)) == 100
    with pytest.raises(OSError, match="more than 99 bytes"):
        files.read_regular(file, most_bytes=99)
    os.truncate(file, 1 << 40)
    with pytest.raises(OSError, match="more than 100 bytes"):
        files.read_regular(file, most_bytes=100)


@pytest.mark.parametrize("make", [ODD[name] for name in ("pipe", "link to a device", "dangling link")])
def test_what_is_written_takes_the_place_of_whatever_was_there(short_path, make):
    make(short_path)
    files.replace_content(short_path, "new")
    assert not short_path.is_symlink()
    assert short_path.read_text() == "new"
    assert os.listdir() == ["entry"]


def test_old_file_stays_until_the_new_one_is_whole(short_path, monkeypatch):
    def umask(mask):
        raise AssertionError("the mask is changed for all threads")

    def write(text, error=None):
        with files.Replacing(path) as unfinished:
            assert unfinished.suffix == ".txt"
            unfinished.write_text(text)
            assert path.read_text() == "old"
            if error is not None:
                raise error

    monkeypatch.setattr(os, "umask", umask)
    path = short_path.with_name("é" * 120 + ".txt")  # a long name has room for another beside it
    path.write_text("old")
    mode = path.stat().st_mode
    with pytest.raises(RuntimeError, match="boom"):
        write("half", RuntimeError("boom"))
    assert (path.read_text(), os.listdir()) == ("old", [path.name])
    write("new")
    assert (path.read_text(), os.listdir()) == ("new", [path.name])
    assert path.stat().st_mode == mode, "as readable as any other file of the user"
    path.unlink()
    path.mkdir()
    with pytest.raises(OSError):
        files.replace_content(path, "new")
    assert os.listdir() == [path.name]


def test_a_device_is_left_alone(tmp_path):
    path = tmp_path / "device"
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))
    except (OSError, AttributeError):
        pytest.skip("only the administrator of a whole machine may make a device")
    with pytest.raises(OSError, match="a device"):
        files.replace_content(path, "new")
    assert stat.S_ISCHR(path.stat().st_mode)
    assert os.listdir(tmp_path) == ["device"]


def test_a_lock_has_one_holder_until_that_closes_it(tmp_path):
    path = tmp_path / "lock"
    first, second = wait_for_lock(path, 0o600, limit_s=0), open_lock(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert not try_lock(second)
    os.close(first)
    assert try_lock(second)
    os.close(second)


def test_a_lock_that_cannot_be_had_is_told_and_leaves_no_descriptor(tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr(
        files, "open_lock", lambda *arguments: opened.append(open_lock(*arguments)) or opened[0]
    )
    holder = open_lock(tmp_path / "lock")
    assert try_lock(holder)
    with pytest.raises(TimeoutError, match="another process has held it for 0 s"):
        wait_for_lock(tmp_path / "lock", limit_s=0)
    with pytest.raises(OSError):
        os.fstat(opened[0])
    os.close(holder)
