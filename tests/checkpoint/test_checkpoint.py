"""Checkpoints on disk: what goes in comes out, and no crash, damage or second writer costs an older one."""

from __future__ import annotations

import errno
import math
import os
import resource
import signal
import subprocess
import sys
import threading
import warnings
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from overlap_train._checkpoint import container
from overlap_train._checkpoint.state import CheckpointState, layout
from overlap_train._checkpoint.store import CheckpointStore
from overlap_train.errors import CheckpointCorruptError, CheckpointError, CheckpointMismatchError

DTYPES = [
    *("bool", "int8", "uint8", "int16", "int32", "int64", "uint64", "float16", "float32", "float64"),
    *("complex64", "complex128", ">f4", "<U3", "S4", "datetime64[ns]"),
    *(ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.int4),
]


def state(epoch: int = 1, **changes) -> CheckpointState:
    arrays = {"kernel": np.full((3, 2), epoch, np.float32), "iterations": np.array(epoch, np.int64)}
    made = CheckpointState(epoch, 10 * epoch, arrays, {"note": [epoch]}, {"model": "a", "data": "b"})
    return replace(made, **changes)


def assert_same(first: CheckpointState, second: CheckpointState) -> None:
    assert (first.epoch, first.step) == (second.epoch, second.step)
    assert repr(dict(first.meta)) == repr(dict(second.meta))  # repr: NaN is not equal to itself
    assert dict(first.fingerprint) == dict(second.fingerprint)
    assert list(first.arrays) == list(second.arrays)
    for name, array in first.arrays.items():
        assert second.arrays[name].dtype == array.dtype
        assert second.arrays[name].shape == array.shape
        assert second.arrays[name].tobytes() == array.tobytes()


def roundtrip(saved: CheckpointState, path: Path) -> CheckpointState:
    path.write_bytes(b"".join(container.encode(saved)))
    return container.read(path)


# What goes in comes out.


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (2, 3)], ids=str)
def test_every_dtype_and_shape_survives(tmp_path, dtype, shape):
    array = np.arange(math.prod(shape)).reshape(shape).astype("int8").astype(dtype)
    saved = state(arrays={"a": array, "b": np.float32([1])})
    assert_same(saved, roundtrip(saved, tmp_path / "f"))


def test_strided_arrays_survive(tmp_path):
    grid = np.arange(24.0).reshape(4, 6)
    saved = state(arrays={"t": grid.T, "s": grid[::2, ::-3], "f": np.asfortranarray(grid)})
    assert_same(saved, roundtrip(saved, tmp_path / "f"))


def test_loaded_arrays_can_be_written(tmp_path):
    roundtrip(state(), tmp_path / "f").arrays["kernel"][:] = 5


@given(array=hnp.arrays(hnp.scalar_dtypes().filter(lambda d: d.itemsize > 0), hnp.array_shapes(min_dims=0)))
@settings(max_examples=60, deadline=None)
def test_any_array_survives(tmp_path_factory, array):
    saved = state(arrays={"a": np.asarray(array)})
    assert_same(saved, roundtrip(saved, tmp_path_factory.getbasetemp() / "any_array"))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(meta=st.dictionaries(st.text(), JSON))
@settings(max_examples=50, deadline=None)
def test_any_meta_survives(tmp_path_factory, meta):
    saved = state(meta=meta)
    assert_same(saved, roundtrip(saved, tmp_path_factory.getbasetemp() / "any_meta"))


def test_numbers_that_json_rounds_or_lacks_survive(tmp_path):
    meta = {"big": 2**53 + 1, "huge": -(10**300), "inf": [math.inf, -math.inf], "nan": math.nan, "zero": -0.0}
    loaded = roundtrip(state(meta=meta), tmp_path / "f").meta
    assert loaded["big"] == 2**53 + 1
    assert loaded["huge"] == -(10**300)
    assert loaded["inf"] == [math.inf, -math.inf]
    assert math.isnan(loaded["nan"])
    assert math.copysign(1, loaded["zero"]) == -1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arrays": {"a": np.array([None])}}, r"arrays\['a'\] has dtype object"),
        ({"arrays": {"a": np.zeros(2, [("x", "f4")])}}, r"arrays\['a'\] has dtype"),
        ({"arrays": {"a": [1.0]}}, r"arrays\['a'\] must be a NumPy array; got list"),
        ({"arrays": {1: np.zeros(1)}}, "names of arrays must be of type str"),
        ({"meta": {"a": (1, 2)}}, r"meta\['a'\] is of type tuple"),
        ({"meta": {"a": [{1: 2}]}}, r"keys of meta\['a'\]\[0\] must be of type str"),
        ({"meta": {"a": np.float32(1)}}, r"meta\['a'\] is of type float32"),
        ({"fingerprint": {"model": 3}}, r"fingerprint\['model'\] must be of type str"),
    ],
)
def test_what_cannot_be_stored_is_refused_by_name(tmp_path, changes, message):
    with CheckpointStore(tmp_path) as store, pytest.raises(TypeError, match=message):
        store.save(state(**changes))
    assert store.paths == ()


def test_negative_epoch_is_refused(tmp_path):
    with (
        CheckpointStore(tmp_path) as store,
        pytest.raises(ValueError, match="epoch must be at least 0; got -1"),
    ):
        store.save(state(epoch=-1))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"directory": 3}, TypeError, "directory must be a path; got 3"),
        ({"directory": "d", "keep": 0}, ValueError, "keep must be at least 1; got 0"),
        ({"directory": "d", "keep": True}, TypeError, "keep must be an integer; got True"),
        ({"directory": "d", "keep": 1.5}, TypeError, "keep must be an integer; got 1.5"),
    ],
)
def test_bad_arguments_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        CheckpointStore(**arguments)


# The directory.


def test_missing_and_empty_directories_hold_none(tmp_path):
    assert CheckpointStore(tmp_path / "none").load_latest() is None
    assert not (tmp_path / "none").exists()
    assert CheckpointStore(tmp_path).load_latest() is None


def test_latest_is_the_last_written_though_its_epoch_be_lower(tmp_path):
    with CheckpointStore(tmp_path / "deep" / "er") as store:
        store.save(state(5))
        store.save(state(4))
        assert store.load_latest().epoch == 4


def test_keeps_the_newest(tmp_path):
    with CheckpointStore(tmp_path, keep=2) as store:
        paths = [store.save(state(epoch)) for epoch in range(5)]
        assert store.paths == tuple(paths[-2:])
    assert sorted(p.name for p in tmp_path.iterdir()) == [".lock", "ckpt-000004.otck", "ckpt-000005.otck"]


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


def test_other_files_are_left_alone(tmp_path):
    for name in ("ckpt-000009.otck.bak", "notes.txt", ".ckpt-x.tmp"):
        (tmp_path / name).write_text("mine")
    (tmp_path / ".ckpt-000003.otck.tmp").write_text("half of one")
    with CheckpointStore(tmp_path) as store:
        store.save(state())
    assert {p.name for p in tmp_path.iterdir()} == {
        *("ckpt-000009.otck.bak", "notes.txt", ".ckpt-x.tmp", ".lock", "ckpt-000001.otck")
    }


# Damage.


def test_every_flipped_bit_is_found(tmp_path):
    path = tmp_path / "f"
    sound = b"".join(container.encode(state()))
    for index in range(len(sound)):
        damaged = bytearray(sound)
        damaged[index] ^= 1 << (index % 8)
        path.write_bytes(damaged)
        with pytest.raises(CheckpointCorruptError, match="cannot be used"):
            container.read(path)


def test_every_truncation_and_any_surplus_is_found(tmp_path):
    path = tmp_path / "f"
    sound = b"".join(container.encode(state()))
    for content in [*(sound[:size] for size in range(len(sound))), sound + b"\0"]:
        path.write_bytes(content)
        with pytest.raises(CheckpointCorruptError, match="cannot be used"):
            container.read(path)


def test_damage_is_named(tmp_path):
    sound = b"".join(container.encode(state()))
    path = tmp_path / "f"
    for content, message in [
        (sound[:-1], "truncated"),
        (b"PK" + sound[2:], "does not begin as a checkpoint"),
        (sound[:6] + b"\x07\0" + sound[8:], "version 7 of the layout, and this release reads version 1"),
        (sound[:-1] + b"\xff", "checksum of the array 'iterations' differs"),
        (sound[:60] + b"\xff" + sound[61:], "checksum of its manifest differs"),
    ]:
        path.write_bytes(content)
        with pytest.raises(CheckpointCorruptError, match=message):
            CheckpointStore(tmp_path).load(path)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"no checkpoint at .*gone.otck"):
        CheckpointStore(tmp_path).load(tmp_path / "gone.otck")


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
        store.save(state(1)).write_bytes(b"")
        store.save(state(2)).write_bytes(b"x")
        with pytest.raises(CheckpointCorruptError, match=r"None of the 2 checkpoints"):
            store.load_latest()


# Another training's checkpoint.


def test_every_part_that_differs_is_named(tmp_path):
    with CheckpointStore(tmp_path) as store:
        path = store.save(
            state(fingerprint={"model": "dense 3x2\ndense 2x1", "data": "60000", "optimizer": "sgd"})
        )
    wanted = {"model": "dense 3x2\ndense 2x4", "data": "60000", "optimizer": "adam"}
    for load in (store.load_latest, lambda fingerprint: store.load(path, fingerprint)):
        with pytest.raises(CheckpointMismatchError) as raised:
            load(fingerprint=wanted)
        message = str(raised.value)
        assert "model: line 2, the checkpoint has 'dense 2x1', this training has 'dense 2x4'" in message
        assert "optimizer: the checkpoint has 'sgd', this training has 'adam'" in message
        assert "data:" not in message
        assert "same model and optimizer, or give another directory" in message


def test_parts_that_one_side_lacks_differ():
    with pytest.raises(CheckpointMismatchError, match="data: this training has none"):
        state().check({"model": "a"})
    with pytest.raises(CheckpointMismatchError, match="seed: the checkpoint has none"):
        state().check({"model": "a", "data": "b", "seed": "c"})
    state().check({"data": "b", "model": "a"})


def test_layout_forgets_what_the_process_built_before():
    import keras

    def build(units: int) -> str:
        made = keras.Sequential([keras.Input((4,)), keras.layers.Dense(units), keras.layers.Dense(1)])
        made.compile(keras.optimizers.Adam(), "mse")
        made.optimizer.build(made.trainable_variables)
        return layout([*made.variables, *made.optimizer.variables])

    assert build(3) == build(3)
    assert build(3) != build(2)
    assert build(3).splitlines()[0].endswith("kernel 4x3 float32")


# Crashes and full disks.


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


def save_on(disk_error, at, directory, *, undo_names=False):
    """Saves the fourth checkpoint of a store that keeps two, with an error at the n-th operation."""
    with CheckpointStore(directory, keep=2) as store:
        for epoch in range(3):
            store.save(state(epoch))
        (directory / ".ckpt-000009.otck.tmp").write_text("left by an earlier crash")
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


# Sweep; open, four writes, fsync, close; replace; open, fsync and close of the directory; delete.
OPERATIONS = 13


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
        leftovers = [p.name for p in tmp_path.iterdir() if p.name.endswith(".tmp")]
        assert leftovers in ([], [".ckpt-000009.otck.tmp"] if at == 1 else [])
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


def test_directory_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"cannot be written into .*file"):
        CheckpointStore(tmp_path / "file").acquire()


# A second writer.


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


KILL = """
import os, random, signal, sys, time
import numpy as np
from overlap_train._checkpoint.state import CheckpointState
from overlap_train._checkpoint.store import CheckpointStore

directory, kills = sys.argv[1], int(sys.argv[2])
chance = random.Random(0)
last = 0
for _ in range(kills):
    ready, tell = os.pipe()
    child = os.fork()
    if not child:
        with CheckpointStore(directory, keep=2) as store:
            os.write(tell, b"!")
            for epoch in range(last + 1, 10**9):
                store.save(CheckpointState(epoch, epoch, {"a": np.full(50_000, epoch, np.int32)}))
    os.read(ready, 1)
    time.sleep(chance.uniform(0, 0.06))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(ready), os.close(tell)
    store = CheckpointStore(directory)
    found = store.load_latest()
    if found is not None:
        assert found.epoch >= last, (found.epoch, last)
        assert (found.arrays["a"] == found.epoch).all()
        last = found.epoch
    assert len(os.listdir(directory)) <= 1 + 3 + 1, os.listdir(directory)
print(last)
"""


def test_sigkill_at_random_moments_never_leaves_a_damaged_one(tmp_path):
    command = [sys.executable, "-W", "error::RuntimeWarning", "-c", KILL, tmp_path, "30"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=150)
    assert int(done.stdout) > 0


def test_write_that_the_kernel_refuses_leaves_the_older_ones(tmp_path):
    with CheckpointStore(tmp_path) as store:
        store.save(state(1))
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
        try:
            with pytest.raises(
                CheckpointError, match=r"cannot be written: File too large. It needs \d+ bytes"
            ):
                store.save(state(2, arrays={"a": np.zeros(100_000)}))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert sorted(p.name for p in tmp_path.iterdir()) == [".lock", "ckpt-000001.otck"]
        assert store.load_latest().epoch == 1


def test_forgotten_lock_warns_and_is_released(tmp_path):
    store = CheckpointStore(tmp_path)
    store.acquire()
    lock = store._lock
    with pytest.warns(ResourceWarning, match="was not released"):
        lock.__del__()
    with CheckpointStore(tmp_path) as other:
        other.save(state())


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


def test_reading_while_another_thread_saves_finds_whole_ones(tmp_path):
    stop = threading.Event()
    with CheckpointStore(tmp_path, keep=3) as store:
        store.save(state(0))

        def write() -> None:
            epoch = 1
            while not stop.is_set():
                store.save(state(epoch))
                epoch += 1

        writer = threading.Thread(target=write)
        writer.start()
        try:
            reader = CheckpointStore(tmp_path)
            epochs = []
            for _ in range(50):
                epochs.append(reader.load_latest().epoch)
        finally:
            stop.set()
            writer.join()
    assert epochs == sorted(epochs)
