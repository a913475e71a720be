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
    else:
        path.symlink_to(target if kind == "link" else path.parent / "nowhere")


@pytest.fixture
def precious(tmp_path):
    """A file that is not ours."""
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
        with pytest.warns(RuntimeWarning, match="000050"):
            assert store.load_latest().epoch == 1
        assert store.save(state(2)).name == "ckpt-000051.otck"
        assert store.load_latest().epoch == 2


@pytest.mark.parametrize("kind", ["pipe", "socket", "link"])
def test_a_lock_that_is_something_else_is_refused_and_spared(tmp_path, kind, precious):
    (tmp_path / "run").mkdir()
    put(tmp_path / "run" / ".lock", kind, precious)
    with pytest.raises(CheckpointError, match="Give another directory"):
        CheckpointStore(tmp_path / "run").acquire()


def test_a_lock_that_an_earlier_training_left_is_taken(tmp_path):
    (tmp_path / ".lock").write_bytes(b"123")
    with CheckpointStore(tmp_path) as store:
        store.save(state())
    assert (tmp_path / ".lock").read_bytes() == b"123"


def test_a_place_where_no_directory_can_be_says_what_to_do(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere" / "at all")
    for directory in (tmp_path / "file", tmp_path / "file" / "below", tmp_path / "link" / "run", "/dev/null"):
        with pytest.raises(CheckpointError, match="Give another directory"):
            CheckpointStore(directory).acquire()
    with pytest.raises(CheckpointError, match="Give another directory"):
        CheckpointStore(tmp_path / "file").load_latest()


def failing(monkeypatch, name, code, fails=lambda *arguments: True):
    """Has a function of `os` raise the error of a code where `fails` says so of its arguments."""
    real = getattr(os, name)

    def operation(*arguments, **options):
        if fails(*arguments):
            raise OSError(code, os.strerror(code))
        return real(*arguments, **options)

    monkeypatch.setattr(os, name, operation)


def of_directory(path, flags, *_):
    return flags & os.O_DIRECTORY


NO_SYNC = [errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EROFS]
REFUSED = [*(("fsync", code) for code in NO_SYNC), ("open", errno.EACCES, of_directory)]


@pytest.mark.parametrize("refused", REFUSED, ids=lambda refused: f"{refused[0]} {refused[1]}")
def test_a_file_system_that_syncs_nothing_or_no_directory_is_taken(tmp_path, monkeypatch, refused):
    failing(monkeypatch, *refused)
    with CheckpointStore(tmp_path / "made" / "here") as store:
        store.save(state(1))
        assert store.load_latest().epoch == 1


@pytest.mark.parametrize("code", [errno.EACCES, errno.EMFILE, errno.ENOMEM])
def test_a_newest_one_that_may_be_sound_is_not_passed_over(tmp_path, monkeypatch, code):
    with CheckpointStore(tmp_path) as store:
        store.save(state(1))
        store.save(state(2))
        failing(monkeypatch, "open", code, lambda path, *_: os.fspath(path).endswith("000002.otck"))
        with pytest.raises(CheckpointError, match=f"cannot be read: .*{os.strerror(code)}") as raised:
            store.load_latest()
        assert not isinstance(raised.value, CheckpointCorruptError)
        monkeypatch.undo()
        assert store.load_latest().epoch == 2
