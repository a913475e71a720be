"""No crash at any moment, and no error of the disk, costs an older checkpoint."""

from __future__ import annotations

import errno
import os
import warnings
from pathlib import Path

import pytest

from overlap_train._checkpoint.store import CheckpointStore
from overlap_train.errors import CheckpointError
from tests.checkpoint.states import assert_same, state


class PowerCut(BaseException):
    """Ends the simulated process; once it has happened, every further operation raises it."""


class Disk:
    """A disk on which the power fails, or an error happens, at the n-th operation.

    At a power cut what was not synced is lost: files are cut to half of what was written since, and renames
    and deletions in a directory that was not synced are undone, which is the worst that POSIX allows.
    """

    def __init__(self, monkeypatch, at: int, error: type[BaseException] | OSError, root: Path) -> None:
        self.operations, self._at, self._error, self._root = 0, at, error, root
        self._unsynced: dict[str, int] = {}
        self._undo: list = []
        for name in ("open", "write", "fsync", "replace", "unlink", "close"):
            monkeypatch.setattr(os, name, self._wrap(name, getattr(os, name)))

    def _wrap(self, name, real):
        def operation(*args, **kwargs):
            if not self._is_ours(name, args):
                return real(*args, **kwargs)
            self.operations += 1
            dead = self._error is PowerCut and self.operations > self._at
            if dead and name == "close":
                return real(*args)  # the kernel closes what a dead process had open
            if dead or self.operations == self._at:
                if self._error is PowerCut and name == "write":
                    real(args[0], memoryview(args[1])[: len(args[1]) // 2])
                raise self._error
            return getattr(self, f"_{name}", self._plain)(real, *args, **kwargs)

        return operation

    def _is_ours(self, name, args):
        if name in ("write", "fsync", "close"):
            try:
                path = os.readlink(f"/proc/self/fd/{args[0]}")
            except OSError:
                return False
        else:
            path = os.fspath(args[0])
        return isinstance(path, str) and path.startswith(str(self._root)) and not path.endswith(".lock")

    @staticmethod
    def _plain(real, *args, **kwargs):
        return real(*args, **kwargs)

    def _write(self, real, descriptor, data):
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        self._unsynced.setdefault(path, os.fstat(descriptor).st_size)
        return real(descriptor, data)

    def _fsync(self, real, descriptor):
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if os.path.isdir(path):
            self._undo.clear()
        self._unsynced.pop(path, None)
        return real(descriptor)

    def _replace(self, real, source, target):
        assert not os.path.exists(target)
        real(source, target)
        self._undo.append(lambda: real(target, source))
        if str(source) in self._unsynced:
            self._unsynced[str(target)] = self._unsynced.pop(str(source))

    def _unlink(self, real, path):
        content = Path(path).read_bytes()
        real(path)
        self._undo.append(lambda: Path(path).write_bytes(content))

    def lose_what_was_not_synced(self, *, undo_names: bool) -> None:
        for path, synced in self._unsynced.items():
            if os.path.exists(path):
                os.truncate(path, (synced + os.path.getsize(path)) // 2)
        for undo in reversed(self._undo if undo_names else []):
            undo()


LEFTOVERS = (f".ckpt-000008-{'0' * 16}.otck", f".ckpt-000009-{'0' * 16}.otck")


def save_on(disk_error, at, directory, *, undo_names=False):
    """Saves the fourth checkpoint of a store that keeps two, with an error at the n-th operation."""
    with CheckpointStore(directory, keep=2) as store:
        for epoch in range(3):
            store.save(state(epoch))
        for name in LEFTOVERS:
            (directory / name).write_text("left by an earlier crash")
        with pytest.MonkeyPatch.context() as patch:
            disk = Disk(patch, at, disk_error, directory)
            try:
                store.save(state(3))
                done = True
            except (PowerCut, CheckpointError) as error:
                done = False
                disk.raised = error
        if disk_error is PowerCut:
            disk.lose_what_was_not_synced(undo_names=undo_names)
    return disk, done


# Two of a sweep; open and close; open, four writes, fsync, close; replace; open, fsync and close of the
# directory; delete.
OPERATIONS = 16


def test_the_number_of_operations_is_known(tmp_path):
    disk, done = save_on(PowerCut, 10**6, tmp_path)
    assert done
    assert disk.operations == OPERATIONS
    assert {p.name for p in tmp_path.iterdir()} == {".lock", "ckpt-000003.otck", "ckpt-000004.otck"}


@pytest.mark.parametrize("undo_names", [False, True], ids=["names kept", "names lost"])
@pytest.mark.parametrize("at", range(1, OPERATIONS + 2))
def test_power_cut_at_any_operation_leaves_the_old_or_the_new(tmp_path, at, undo_names):
    _, done = save_on(PowerCut, at, tmp_path, undo_names=undo_names)
    with warnings.catch_warnings(), CheckpointStore(tmp_path, keep=2) as store:
        warnings.simplefilter("error")  # nothing that is visible may be damaged
        found = store.load_latest()
        assert_same(found, state(3 if done else found.epoch))
        assert found.epoch in (2, 3)
        assert len(store.paths) >= 2
        store.save(state(4))
        assert store.load_latest().epoch == 4
        assert {p.name for p in tmp_path.iterdir()} == {".lock", *(p.name for p in store.paths)}
        assert len(store.paths) == 2


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO], ids=["disk full", "disk failing"])
@pytest.mark.parametrize("at", range(1, OPERATIONS + 2))
def test_error_at_any_operation_is_told_and_costs_no_checkpoint(tmp_path, at, code):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        disk, done = save_on(OSError(code, os.strerror(code)), at, tmp_path)
    if not done:
        assert os.strerror(code) in str(disk.raised)
        assert "Older checkpoints are as before" in str(disk.raised)
    elif disk.operations >= at:
        assert "stays" in str(seen[0].message)
    with CheckpointStore(tmp_path, keep=2) as store:
        found = store.load_latest()
        assert found.epoch in ((3,) if done else (2, 3))
        assert at <= 2 or [p.name for p in tmp_path.iterdir() if p.name.startswith(".c")] == []
        store.save(state(4))
        assert store.load_latest().epoch == 4


def test_short_writes_are_completed(tmp_path, monkeypatch):
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, memoryview(data)[:7]))
    with CheckpointStore(tmp_path) as store:
        store.save(state(6))
        monkeypatch.undo()
        assert_same(store.load_latest(), state(6))


def test_interrupt_while_writing_leaves_no_rubbish(tmp_path, monkeypatch):
    def interrupted(descriptor):
        raise KeyboardInterrupt

    with CheckpointStore(tmp_path) as store:
        store.save(state(1))
        monkeypatch.setattr(os, "fsync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.save(state(2))
        monkeypatch.undo()
        assert [p.name for p in store.paths] == ["ckpt-000001.otck"]
        assert sorted(p.name for p in tmp_path.iterdir()) == [".lock", "ckpt-000001.otck"]
