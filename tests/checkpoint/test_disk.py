"""What lies in the directory of checkpoints may be anything: nothing else is read, written or waited for."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from overlap_train._checkpoint import container
from overlap_train._checkpoint.store import CheckpointStore
from overlap_train.errors import CheckpointCorruptError, CheckpointError
from tests.checkpoint.states import state


def put(path: Path, kind: str, target: Path) -> None:
    """Puts something that is no file of its own at a path."""
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as bound:
            here = os.getcwd()
            os.chdir(path.parent)  # a socket's path may have 108 bytes at most
            try:
                bound.bind(path.name)
            finally:
                os.chdir(here)
    elif kind == "hard link":
        os.link(target, path)
    else:
        path.symlink_to(target if kind == "link" else path.parent / "nowhere")


@pytest.fixture
def precious(tmp_path):
    """A file that is not ours; holds a process's number, so that its content alone does not save it."""
    path = tmp_path / "precious"
    path.write_text("4711")
    yield path
    assert path.read_text() == "4711"


@pytest.mark.parametrize("kind", ["pipe", "directory", "socket", "link", "dangling link"])
def test_what_is_no_file_is_passed_over(tmp_path, kind, precious):
    with CheckpointStore(tmp_path / "run") as store:
        store.save(state(1))
        sound = tmp_path / "sound"
        sound.write_bytes(b"".join(container.encode(state(9))))
        put(tmp_path / "run" / "ckpt-000050.otck", kind, sound)
        with pytest.warns(RuntimeWarning, match=r"000050.*not a regular file"):
            assert store.load_latest().epoch == 1
        assert store.save(state(2)).name == "ckpt-000051.otck"
        assert store.load_latest().epoch == 2


@pytest.mark.parametrize("kind", ["pipe", "directory", "socket", "link", "dangling link", "hard link"])
def test_a_lock_that_is_something_else_is_refused_and_spared(tmp_path, kind, precious):
    (tmp_path / "run").mkdir()
    lock = tmp_path / "run" / ".lock"
    put(lock, kind, precious)
    before = os.lstat(lock)
    with pytest.raises(CheckpointError, match=r"\.lock is not the lock of a training's checkpoints"):
        CheckpointStore(tmp_path / "run").acquire()
    assert os.lstat(lock)[:2] == before[:2]
    assert not (tmp_path / "run" / "nowhere").exists()


@pytest.mark.parametrize("content", [b"my notes", b"1" * 40, b"12 monkeys"])
def test_a_lock_that_holds_something_else_is_refused_and_spared(tmp_path, content):
    (tmp_path / ".lock").write_bytes(content)
    with pytest.raises(CheckpointError, match="something else than the number of a process"):
        CheckpointStore(tmp_path).acquire()
    assert (tmp_path / ".lock").read_bytes() == content


@pytest.mark.parametrize("content", [b"", b"123", b"123\n", b"\0\0\0"], ids=repr)
def test_a_lock_that_an_earlier_training_left_is_taken(tmp_path, content):
    (tmp_path / ".lock").write_bytes(content)
    with CheckpointStore(tmp_path) as store:
        store.save(state())
    assert (tmp_path / ".lock").read_text() == str(os.getpid())


def test_a_file_in_the_place_of_a_directory_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    for directory in ("file", "file/below", "file/below/that"):
        with pytest.raises(CheckpointError, match=r"file is no directory; move it away"):
            CheckpointStore(tmp_path / directory).acquire()
    with pytest.raises(CheckpointError, match="is no directory"):
        CheckpointStore(tmp_path / "file").load_latest()


@pytest.mark.parametrize("kind", ["pipe", "socket", "dangling link", "device"])
def test_what_else_lies_in_the_place_of_a_directory_is_named_as_such(tmp_path, kind, precious):
    place = Path("/dev/null") if kind == "device" else tmp_path / "place"
    if kind != "device":
        put(place, kind, precious)
    with pytest.raises(
        CheckpointError, match=f"{place} is no directory; move it away, or give another"
    ) as raised:
        CheckpointStore(place).acquire()
    assert "a file belongs" not in str(raised.value)


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (
            errno.ENOSPC,
            r"No space left on device\. Delete what is not needed.*needs \d+ bytes, and \d+ bytes are free",
        ),
        (errno.EDQUOT, "Delete what is not needed"),
        (errno.EACCES, r"Permission denied\. Let user \d+ read and write there"),
        (errno.EROFS, "Read-only file system. Give a directory on a file system that can be written"),
        (
            errno.EFBIG,
            r"File too large\. Raise the limit of a file's size \(ulimit -f\), or give a directory",
        ),
        (errno.EIO, "Input/output error"),
    ],
    ids=["full", "quota", "rights", "read-only", "too large", "failing"],
)
@pytest.mark.parametrize("call", ["open", "write", "fsync", "replace"])
def test_what_hinders_writing_is_named(tmp_path, monkeypatch, call, code, advice):
    real = getattr(os, call)

    def refuse(first, *args, **kwargs):
        path = os.readlink(f"/proc/self/fd/{first}") if isinstance(first, int) else os.fspath(first)
        if call == "open" and not (isinstance(path, str) and Path(path).name.startswith(".ckpt")):
            return real(first, *args, **kwargs)
        raise OSError(code, os.strerror(code), path)

    tolerated = call == "fsync" and code == errno.EROFS
    with CheckpointStore(tmp_path) as store:
        store.save(state(1))
        monkeypatch.setattr(os, call, refuse)
        if tolerated:
            store.save(state(2))
        else:
            with pytest.raises(CheckpointError, match=advice):
                store.save(state(2))
        monkeypatch.undo()
        assert store.load_latest().epoch == (2 if tolerated else 1)
        assert len(list(tmp_path.iterdir())) == len(store.paths) + 1


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EROFS])
def test_a_file_system_that_syncs_nothing_is_taken(tmp_path, monkeypatch, code):
    def refuse(descriptor):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", refuse)
    with CheckpointStore(tmp_path / "made" / "here") as store:
        store.save(state(1))
        assert store.load_latest().epoch == 1


def test_a_directory_that_cannot_be_opened_to_be_synced_is_taken(tmp_path, monkeypatch):
    real = os.open

    def refuse(path, flags, *args, **kwargs):
        if flags & os.O_DIRECTORY:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return real(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", refuse)
    with CheckpointStore(tmp_path / "run") as store:
        assert store.save(state(1)).exists()


@pytest.mark.parametrize("code", [errno.EACCES, errno.EMFILE, errno.ENOMEM])
def test_a_newest_one_that_may_be_sound_is_not_passed_over(tmp_path, monkeypatch, code):
    real = os.open

    def refuse(path, *args, **kwargs):
        if os.fspath(path).endswith("000002.otck"):
            raise OSError(code, os.strerror(code), path)
        return real(path, *args, **kwargs)

    with CheckpointStore(tmp_path) as store:
        store.save(state(1))
        store.save(state(2))
        monkeypatch.setattr(os, "open", refuse)
        with pytest.raises(CheckpointError, match=f"cannot be read: {os.strerror(code)}") as raised:
            store.load_latest()
        assert not isinstance(raised.value, CheckpointCorruptError)
        monkeypatch.undo()
        assert store.load_latest().epoch == 2


def test_names_that_leave_no_next_number_are_not_counted(tmp_path):
    sound = b"".join(container.encode(state(9)))
    for name in ("9" * 200, "9" * 19, "٣" * 6):
        (tmp_path / f"ckpt-{name}.otck").write_bytes(sound)
    with CheckpointStore(tmp_path) as store:
        assert store.paths == ()
        assert store.save(state(1)).name == "ckpt-000001.otck"
