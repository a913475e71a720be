"""A lock has one holder at a time, and what stands in the place of its file is no lock."""

from __future__ import annotations

import errno
import fcntl
import os

import pytest

from overlap_train._support import files
from overlap_train._support.files import IrregularFileError, open_lock, try_lock, wait_for_lock


def test_a_lock_has_one_holder_until_that_closes_it(tmp_path):
    path = tmp_path / "lock"
    first, second = wait_for_lock(path, 0o600, limit_s=0), open_lock(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert not try_lock(second)
    os.close(first)
    assert try_lock(second)
    os.close(second)


def test_waiting_for_a_lock_has_a_limit_and_leaves_no_descriptor(tmp_path, monkeypatch):
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


def test_a_file_system_without_locks_says_so_and_leaves_no_descriptor(tmp_path, monkeypatch):
    opened = []

    def without_locks(descriptor, _):
        opened.append(descriptor)
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", without_locks)
    with pytest.raises(OSError) as told:
        wait_for_lock(tmp_path / "lock", limit_s=60)
    assert told.value.errno == errno.ENOLCK
    with pytest.raises(OSError):
        os.fstat(opened[0])


@pytest.mark.parametrize("put", [os.mkfifo, os.mkdir, lambda path: os.symlink("elsewhere", path)])
def test_what_is_no_file_is_no_lock(tmp_path, put):
    put(tmp_path / "lock")
    with pytest.raises(IrregularFileError, match="not a regular file"):
        wait_for_lock(tmp_path / "lock", limit_s=60)
