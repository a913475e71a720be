"""Pages of mapped files."""

import sys
import threading

import numpy as np
import pytest
import tensorflow as tf

from overlap_train import errors, zero_copy
from overlap_train.zero_copy import pages

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's madvise and /proc")


@pytest.fixture
def mapped(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(16 << 20, dtype=np.uint8).reshape(-1, 1024))
    return np.load(tmp_path / "x.npy", mmap_mode="r")


def drop_pages(array):
    pages._drop(*pages._mapped_pages(array))


def resident(array):
    """Resident bytes of the mapping, as the kernel counts them for it alone."""
    low = array.__array_interface__["data"][0]
    found = False
    with open("/proc/self/smaps", encoding="utf-8") as smaps:
        for line in smaps:
            head = line.split()
            if "-" in head[0] and not head[0].endswith(":"):
                begin, _, end = head[0].partition("-")
                found = int(begin, 16) <= low < int(end, 16)
            elif found and head[0] == "Rss:":
                return int(head[1]) * 1024
    raise AssertionError("the mapping is gone")


def test_dropped_pages_leave_and_their_content_stays(mapped):
    tensor = zero_copy.as_tensor(mapped, mode="zero_copy")
    total = int(tf.reduce_sum(tf.cast(tensor, tf.int64)))
    assert resident(mapped) > mapped.nbytes * 0.9
    drop_pages(mapped)
    assert resident(mapped) < mapped.nbytes * 0.1
    assert int(tf.reduce_sum(tf.cast(tensor, tf.int64))) == total
    drop_pages(mapped[: len(mapped) // 2][::-1])  # its own pages
    assert mapped.nbytes * 0.4 < resident(mapped) < mapped.nbytes * 0.6


def test_what_was_written_to_a_shared_mapping_is_kept(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros(1 << 20, np.uint8))
    array = np.load(tmp_path / "x.npy", mmap_mode="r+")
    array[...] = 5
    drop_pages(array)
    assert (array == 5).all()


@pytest.mark.parametrize("make", [lambda path: np.zeros(1 << 20), lambda path: np.load(path, mmap_mode="c")])
def test_private_memory_is_never_dropped(tmp_path, make):
    np.save(tmp_path / "x.npy", np.zeros(1 << 20))
    array = make(tmp_path / "x.npy")
    array[...] = 5
    with pytest.raises(errors.BufferError, match="no shared mapping"):
        zero_copy.ResidentLimit(array, limit_bytes=1)
    assert (array == 5).all()


def test_limit_drops_pages_while_others_read(mapped, monkeypatch):
    """The watcher is told that much is resident, so that it drops at each look; readers see no difference."""
    readings = iter(range(1 << 30))
    monkeypatch.setattr(pages, "_resident_file_bytes", lambda: next(readings) << 30)
    monkeypatch.setattr(pages, "_POLL_S", 0.0)
    expected = int(mapped.sum(dtype=np.int64))
    with zero_copy.ResidentLimit(mapped, limit_bytes=1) as limit:
        while limit.drops < 20:
            assert int(mapped.sum(dtype=np.int64)) == expected
    assert not any(thread.name == "zero_copy-resident-limit" for thread in threading.enumerate())


def test_limit_is_checked_and_used_once_and_what_is_no_mapping_refused(mapped):
    with pytest.raises(TypeError, match="NumPy array"):
        zero_copy.ResidentLimit([1], limit_bytes=1)
    with pytest.raises(errors.BufferError):
        zero_copy.ResidentLimit(mapped[:0], limit_bytes=1)
    with pytest.raises(ValueError, match="limit_bytes"):
        zero_copy.ResidentLimit(mapped, limit_bytes=0)
    limit = zero_copy.ResidentLimit(mapped, limit_bytes=1 << 30)
    with limit:
        pass
    limit.close()
    with pytest.raises(errors.BufferStateError, match="one with statement"):
        limit.__enter__()
