"""A directory of checkpoints is locked, written atomically and read newest first."""

import errno
import os
import signal
import subprocess
import sys

import pytest

from overlap_train._checkpoint import store
from overlap_train._checkpoint.store import CheckpointStore
from overlap_train.errors import CheckpointCorruptError, CheckpointError
from tests.checkpoint.states import state


def test_second_store_is_refused_until_the_first_is_closed(tmp_path):
    first, second = CheckpointStore(tmp_path), CheckpointStore(tmp_path)
    first.save(state(1))
    with pytest.raises(CheckpointError, match="Another training"):
        second.save(state(2))
    assert second.load_latest().epoch == 1
    first.close()
    first.close()
    second.save(state(2))
    second.close()


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
            with pytest.raises(CheckpointError, match="Another training"):
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


def test_other_files_are_left_alone(tmp_path):
    for name in ("ckpt-000009.otck.bak", "notes.txt", ".ckpt-x.tmp"):
        (tmp_path / name).write_text("mine")
    (tmp_path / f".ckpt-000003-{'0' * 16}.otck").write_text("half of one")
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
        assert [warning.filename for warning in seen] == [__file__]


def test_all_damaged_raises_rather_than_starting_afresh(tmp_path):
    with CheckpointStore(tmp_path) as store:
        paths = [store.save(state(number)) for number in (1, 2, 3)]
        for path in paths:
            path.write_bytes(b"no checkpoint at all")
        with pytest.raises(CheckpointCorruptError, match=r"None of the 3 checkpoints") as raised:
            store.load_latest()
    assert all(str(raised.value).count(path.name) == 1 for path in paths)
