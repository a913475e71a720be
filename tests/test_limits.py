"""Fits where something is scarce or unusual, in processes of their own: as ever or refused, never a wait.

Descriptors, threads or disk are scarce, a loop runs around a fit, and what a fit leaves on the machine is
where it belongs. Each function that a process runs raises where a fit errs.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from overlap_train import Trainer, ValidationPolicy
from overlap_train.errors import CheckpointError
from overlap_train.scheduling import MultiModelScheduler
from tests import forked
from tests.networks import arrays, assert_same_history, crossentropy, linear

EPOCHS = 3


def fit(resume: Any = None, **arguments: Any) -> dict[str, list[float]]:
    x, y = arrays(64)
    trainer = Trainer(linear(), validation=ValidationPolicy(workers=2, overlap="always"))
    common = dict(epochs=EPOCHS, batch_size=16, validation_data=arrays(24, 1), verbose=0)
    return trainer.fit(x, y, resume=resume, **(common | arguments)).history


@functools.cache
def usual() -> dict[str, list[float]]:
    """Returns what a fit gives in a process that lacks nothing."""
    return fit()


def require_no_thread() -> None:
    """Fails where a thread of ours goes on; one that ends by itself is waited for."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.name.startswith("asyncio"):
            thread.join(timeout=20)
            assert not thread.is_alive(), f"thread {thread.name} is left"


@contextlib.contextmanager
def refused(kind: type[Exception], *texts: str) -> Iterator[None]:
    """Fails unless the block raises an exception of a kind, which says all the texts."""
    with pytest.raises(kind) as raised:
        yield
    assert [text for text in texts if text not in str(raised.value)] == []


@contextlib.contextmanager
def limited(kind: int, soft: int) -> Iterator[None]:
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


# Too little of something


def few_descriptors(directory: Path) -> None:
    """With fewer than four, TensorFlow ends the process where it wants one to read random numbers from."""
    expected = usual()
    fit(resume=directory / "first")
    before = descriptors()
    for spare in (4, 16):
        # The limit counts from the highest one: what is free below it has to be taken first.
        taken = [os.open(os.devnull, os.O_RDONLY) for _ in range(max(map(int, os.listdir("/proc/self/fd"))))]
        with limited(resource.RLIMIT_NOFILE, taken[-1] + 1 + spare):
            with refused(OSError, os.strerror(errno.EMFILE)), contextlib.ExitStack() as stack:
                for _ in range(spare + 1):
                    stack.enter_context(open(os.devnull))
            assert_same_history(fit(resume=directory / str(spare)), expected)
        require_no_thread()
        for descriptor in taken:
            os.close(descriptor)
        assert descriptors() == before


def few_threads() -> None:
    """Lets the system refuse the n-th thread of Python's; those of TensorFlow end the process."""
    expected = usual()
    start, counted, refused_one = threading.Thread.start, [0], [0]

    def refuse(thread: threading.Thread) -> None:
        counted[0] += 1
        if counted[0] == refused_one[0]:
            raise RuntimeError("can't start new thread")
        start(thread)

    threading.Thread.start = refuse  # type: ignore[method-assign]
    assert_same_history(fit(), expected)
    needed = 0
    for refused_one[0] in range(1, counted[0] + 1):
        counted[0] = 0
        try:
            assert_same_history(fit(), expected)
        except RuntimeError as error:
            if "ask for fewer workers, or raise the limit of threads" not in str(error):
                raise
            needed += 1
        require_no_thread()
    assert needed == 2, f"{needed} threads are needed, and not only the two that validate"


def short_files(directory: Path) -> None:
    """Lets no file be longer than 100 bytes: neither a checkpoint nor a plan can be kept."""
    expected = usual()
    with limited(resource.RLIMIT_FSIZE, 100):
        assert_same_history(fit(), expected)
        with refused(CheckpointError, "File too large"):
            fit(resume=directory / "checkpoints")
    require_no_thread()
    assert_same_history(fit(resume=directory / "checkpoints"), expected)


def watched_fits(directory: Path, environment: dict[str, str]) -> None:
    """Prints what two fits opened for writing or made, as JSON; one of them has convolutions."""
    os.environ.update(environment)
    tempfile.tempdir = None
    os.chdir(directory / "cwd")
    paths: set[str] = set()
    written = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            places = arguments[:1] if arguments[2] & written else ()
        elif event in ("os.mkdir", "os.rename", "os.link", "os.symlink", "shutil.copyfile"):
            places = arguments[:2]
        else:
            return
        paths.update(os.path.abspath(os.fsdecode(p)) for p in places if isinstance(p, (str, bytes)))

    sys.dont_write_bytecode = True
    sys.addaudithook(watch)
    model = keras.Sequential(
        [keras.Input((6, 6, 2)), keras.layers.Conv2D(3, 3), keras.layers.Flatten(), keras.layers.Dense(2)]
    )
    model.compile("adam", crossentropy())
    x, y = np.ones((64, 6, 6, 2), "float32"), np.zeros(64, "int32")
    Trainer(model).fit(x, y, epochs=3, validation_data=(x, y), verbose=0)
    fit(resume=directory / "checkpoints")
    print(json.dumps(sorted(paths)))


# Forks


def in_a_fork(act: Callable[[], object]) -> None:
    child = os.fork()
    if not child:
        act()
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def forks(directory: Path) -> None:
    """A fork of a process that has imported TensorFlow and not used it may train; one after a fit may not."""
    in_a_fork(fit)
    fit()
    trainer, words = Trainer(linear()), ("forked from process", 'get_context("spawn")')

    def is_refused() -> None:
        for call in (trainer.fit, trainer.explain, trainer.evaluate):
            with refused(RuntimeError, *words):
                call(*arrays(64))
        with MultiModelScheduler() as scheduler, refused(RuntimeError, *words):
            scheduler.add("model", trainer.model)

    in_a_fork(is_refused)


# Surroundings


async def in_an_event_loop() -> dict[str, list[float]]:
    """As in a cell of a notebook, whose main thread runs a loop."""
    return fit()


async def beside_an_event_loop() -> dict[str, list[float]]:
    """In a thread of a program whose main one runs a loop."""
    return await asyncio.to_thread(fit)


def threads_and_loops(directory: Path) -> None:
    few_threads()
    warnings.simplefilter("error", RuntimeWarning)
    for surrounding in (in_an_event_loop, beside_an_event_loop):
        assert_same_history(asyncio.run(surrounding()), usual())
        require_no_thread()


# Few processes of several cases each: most of the time of one goes into its first fit.
CASES = [few_descriptors, threads_and_loops, short_files, forks]


@pytest.mark.nightly
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_fit_is_as_ever_or_refused(case, tmp_path):
    forked.run(case, tmp_path, said=tmp_path.parent / f"{tmp_path.name}.said")


@pytest.mark.nightly
def test_the_first_fit_of_a_process_may_be_at_its_exit():
    code = "import atexit; from tests.test_limits import fit; atexit.register(lambda: print(fit()))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )
    assert "'val_loss'" in done.stdout, done.stderr[-4000:]


def watched_fit(tmp_path, **environment):
    """Returns what a process with two fits wrote to, as its audit hook saw it."""
    for name in ("home", "cwd"):
        (tmp_path / name).mkdir()
    variables = {
        "HOME": str(tmp_path / "home"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "OVERLAP_TRAIN_CACHE_DIR": "",
        **environment,
    }
    said = forked.run(watched_fits, tmp_path, variables, said=tmp_path / "said")
    return [Path(path) for path in json.loads(said.splitlines()[-1])]


def test_a_fit_writes_nothing_outside_its_cache_and_the_given_directories(tmp_path):
    written = watched_fit(tmp_path)
    allowed = (tmp_path / "cache", tmp_path / "checkpoints", Path("/dev/null"), Path("/proc"))
    assert not [path for path in written if not any(path.is_relative_to(place) for place in allowed)]
    # The hook does see what is written.
    assert any(path.is_relative_to(tmp_path / "checkpoints") for path in written)
    # And of what it cannot see, which is made by native code, nothing is left.
    assert list((tmp_path / "home").iterdir()) == list((tmp_path / "cwd").iterdir()) == []


@pytest.mark.nightly
def test_a_fit_without_a_home_or_a_cache_is_one(tmp_path):
    nowhere = tmp_path / "nowhere"
    nowhere.write_text("a file, in which no folder can be made")
    written = watched_fit(tmp_path, HOME="", XDG_CACHE_HOME="", TMPDIR=str(nowhere))
    outside = [path for path in written if not path.is_relative_to(tmp_path / "checkpoints")]
    assert set(outside) <= {Path("/dev/null")}
