"""One process writes into a directory, and its end gives the directory free."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys

import pytest

from overlap_train._checkpoint.store import CheckpointStore
from overlap_train.errors import CheckpointError
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


def test_forgotten_lock_warns_and_is_released(tmp_path):
    store = CheckpointStore(tmp_path)
    store.acquire()
    lock = store._lock
    with pytest.warns(ResourceWarning, match="was not released"):
        lock.__del__()
    with CheckpointStore(tmp_path) as other:
        other.save(state())
