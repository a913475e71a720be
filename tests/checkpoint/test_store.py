"""A directory of checkpoints is locked, written atomically and read newest first."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys

import pytest

from overlap_train._checkpoint import container, store
from overlap_train._checkpoint.store import CheckpointStore
from overlap_train.errors import CheckpointCorruptError, CheckpointError
from tests.checkpoint.states import state


def test_second_store_is_refused_until_the_first_is_closed(tmp_path):
    first, second = CheckpointStore(tmp_path), CheckpointStore(tmp_path)
    first.save(state(1))
    with pytest.raises(CheckpointError, match=rf"Another training \(process {os.getpid()}\)"):
        second.save(state(2))
    assert second.load_latest().epoch == 1
    first.close()
    first.close()
    second.save(state(2))
    second.close()


@pytest.mark.parametrize("lost", ["the directory", "the file", "for another file"])
def test_a_lock_that_was_lost_is_taken_again(tmp_path, lost):
    directory = tmp_path / "run"
    first, second = CheckpointStore(directory), CheckpointStore(directory)
    first.save(state(1))
    if lost == "the directory":
        shutil.rmtree(directory)
    else:
        (directory / ".lock").unlink()
        if lost == "for another file":
            (directory / ".lock").touch()
    first.save(state(2))
    with pytest.raises(CheckpointError, match="Another training"):
        second.save(state(3))
    first.close()
    second.close()


def test_a_lock_that_was_lost_to_another_is_not_taken_back(tmp_path):
    first, second = CheckpointStore(tmp_path), CheckpointStore(tmp_path)
    first.save(state(1))
    (tmp_path / ".lock").unlink()
    second.save(state(2))
    with pytest.raises(CheckpointError, match="Another training"):
        first.save(state(3))
    assert first.load_latest().epoch == 2
    second.close()
    first.save(state(3))
    first.close()


HOLD = """
import os, signal, sys
from overlap_train._checkpoint.store import CheckpointStore
store = CheckpointStore(sys.argv[1])
store.acquire()
if not os.fork():
    print(os.getpid(), flush=True)  # by the child, which has let go of its copy of the lock by now
signal.pause()
"""


def test_lock_ends_with_its_process_though_a_forked_child_lives_on(tmp_path):
    # Standard error is inherited: a failure of the child shows.
    with subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE) as process:
        child = int(process.stdout.readline())
        try:
            store = CheckpointStore(tmp_path)
            with pytest.raises(CheckpointError, match=rf"process {process.pid}\)"):
                store.save(state())
            process.kill()
            process.wait()
            store.save(state())
            store.close()
        finally:
            process.kill()
            os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EIO])
def test_a_file_system_without_locks_is_written_to_with_a_warning(code, tmp_path, monkeypatch):
    def fails(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(store, "try_lock", fails)
    monkeypatch.setattr(os, "pwrite", fails)  # who holds the lock is not said then
    if code == errno.EIO:
        with pytest.raises(CheckpointError, match=os.strerror(code)):
            CheckpointStore(tmp_path).save(state(1))
        return
    with pytest.warns(RuntimeWarning, match="has no locks"), CheckpointStore(tmp_path) as written:
        written.save(state(1))
    assert CheckpointStore(tmp_path).load_latest().epoch == 1


def test_forgotten_lock_warns_and_is_released(tmp_path):
    store = CheckpointStore(tmp_path)
    store.acquire()
    lock = store._lock
    with pytest.warns(ResourceWarning, match="was not released"):
        lock.__del__()
    with CheckpointStore(tmp_path) as other:
        other.save(state())


def test_missing_and_empty_directories_hold_none(tmp_path):
    assert CheckpointStore(tmp_path / "none").load_latest() is None
    assert not (tmp_path / "none").exists()
    assert CheckpointStore(tmp_path).load_latest() is None


def test_latest_is_the_last_written_though_its_epoch_be_lower(tmp_path):
    with CheckpointStore(tmp_path / "deep" / "er") as store:
        store.save(state(5))
        store.save(state(4))
        assert store.load_latest().epoch == 4


def test_another_store_goes_on_counting(tmp_path):
    for epoch in range(12):
        with CheckpointStore(tmp_path, keep=1) as store:
            assert store.save(state(epoch)).name == f"ckpt-{epoch + 1:06d}.otck"


def test_order_is_by_number_when_the_digits_run_out(tmp_path):
    data = b"".join(container.encode(state(7)))
    for number in (999_998, 999_999, 1_000_000):
        (tmp_path / f"ckpt-{number:06d}.otck").write_bytes(data)
    with CheckpointStore(tmp_path) as store:
        assert store.save(state(8)).name == "ckpt-1000001.otck"
        assert store.load_latest().epoch == 8


def test_a_directory_without_a_number_left_is_refused_before_anything_is_written(tmp_path):
    last = tmp_path / f"ckpt-{'9' * 18}.otck"
    last.write_bytes(b"by hand")
    store = CheckpointStore(tmp_path)
    for write in (store.acquire, lambda: store.save(state(1))):
        with pytest.raises(CheckpointError, match=r"behind ckpt-9+\.otck no number is left"):
            write()
    assert list(tmp_path.iterdir()) == [last]
    last.rename(tmp_path / f"ckpt-{'9' * 17}8.otck")
    assert store.save(state(1)) == last
    assert store.load_latest().epoch == 1
    store.close()


def test_other_files_are_left_alone(tmp_path):
    for name in ("ckpt-000009.otck.bak", "notes.txt", ".ckpt-x.tmp"):
        (tmp_path / name).write_text("mine")
    (tmp_path / ".ckpt-000003.otck.tmp").write_text("half of one")
    with CheckpointStore(tmp_path) as store:
        store.save(state())
    assert {p.name for p in tmp_path.iterdir()} == {
        *("ckpt-000009.otck.bak", "notes.txt", ".ckpt-x.tmp", ".lock", "ckpt-000001.otck")
    }


def test_damaged_newest_is_passed_over_with_one_warning(tmp_path):
    with CheckpointStore(tmp_path) as store:
        for epoch in range(3):
            store.save(state(epoch))
        store.paths[2].write_bytes(b"")
        store.paths[1].write_bytes(store.paths[1].read_bytes()[:-5])
        with pytest.warns(RuntimeWarning, match=r"Resuming from .*000001.*000003.*000002") as seen:
            assert store.load_latest().epoch == 0
        assert len(seen) == 1


def test_damaged_ones_are_not_counted_as_kept(tmp_path):
    with CheckpointStore(tmp_path, keep=2) as store:
        first, second = store.save(state(1)), store.save(state(2))
        second.write_bytes(b"")
        with pytest.warns(RuntimeWarning, match="Resuming"):
            store.load_latest()
        third = store.save(state(3))
        assert store.paths == (first, second, third)
        fourth = store.save(state(4))
        assert store.paths == (third, fourth)


def test_all_damaged_raises_rather_than_starting_afresh(tmp_path):
    with CheckpointStore(tmp_path) as store:
        paths = [store.save(state(number)) for number in (1, 2, 3)]
        for path, content in zip(paths, (b"no checkpoint at all", b"no checkpoint at all", b""), strict=True):
            path.write_bytes(content)
        with pytest.raises(CheckpointCorruptError, match=r"None of the 3 checkpoints") as raised:
            store.load_latest()
    assert all(str(raised.value).count(path.name) == 1 for path in paths)
    assert str(raised.value).count("it ends after 20 bytes") == 1


def test_a_directory_that_cannot_be_made_says_what_to_do(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "nowhere" / "at all")
    for place in (tmp_path / "link" / "run", "/proc/nothing/here"):
        with pytest.raises(CheckpointError, match=r"[Gg]ive another directory"):
            CheckpointStore(place).acquire()


def test_a_checkpoint_deleted_between_listing_and_reading_is_no_damaged_one(tmp_path, monkeypatch):
    store, read = CheckpointStore(tmp_path, keep=1), container.read

    def late(path):
        monkeypatch.setattr(container, "read", read)
        store.save(state(7))
        return read(path)

    with store:
        store.save(state(0))
        monkeypatch.setattr(container, "read", late)
        assert CheckpointStore(tmp_path).load_latest().epoch == 7
