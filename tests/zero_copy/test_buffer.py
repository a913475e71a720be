"""MappedBuffer: turns, lifetimes, refusals; when it shares, where sharing first loses, what is kept of it."""

import gc
import json
import pickle
import random
import threading

import numpy as np
import pytest
import tensorflow as tf

from overlap_train import errors, zero_copy
from overlap_train.zero_copy import MappedBuffer
from overlap_train.zero_copy.buffer import SizeTiming, find_crossover
from overlap_train.zero_copy.pool import HostBackend, Pool
from overlap_train.zero_copy.tensors import keep_crossover, stored_crossovers
from tests.zero_copy.conftest import address


@pytest.fixture
def pool():
    return Pool(HostBackend(), limit_bytes=0)


@pytest.mark.parametrize("dtype", ["float32", "bool", tf.float16])
def test_array_and_tensor_show_the_same_bytes(dtype):
    with MappedBuffer((4, 3), dtype, backend="host") as buffer:
        array = buffer.numpy()
        assert array.shape == (4, 3)
        assert address(array) % 256 == 0
        array[...] = 1
        before = zero_copy.statistics()
        tensor = buffer.tensor(mode="zero_copy")
        assert address(zero_copy.as_array(tensor)) == address(array)
        assert zero_copy.statistics().copied_bytes == before.copied_bytes
        assert tensor.dtype == tf.as_dtype(buffer.dtype)
        assert bool(tf.reduce_all(tf.cast(tensor, tf.bool)))


@pytest.mark.cpu_only("what a GPU computes of a tensor shares no memory with it")
def test_writing_after_the_hand_over_raises():
    buffer = MappedBuffer(8, backend="host")
    array = buffer.numpy()
    tensor = buffer.tensor()
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        array.flags.writeable = True
    with pytest.raises(errors.BufferStateError, match=r"1 tensor\(s\) still share"):
        buffer.numpy()
    derived = tf.reshape(tensor, [2, 4])
    del tensor
    with pytest.raises(errors.BufferStateError, match="still share"):
        buffer.numpy()
    del derived
    assert buffer.numpy() is not array
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


@pytest.mark.parametrize(
    "derive",
    [
        lambda array: array[2:],
        lambda array: array[2:][1:],
        lambda array: array.reshape(4, 2).T,
        lambda array: array.view(np.uint8),
        lambda array: np.asarray(array)[::2],
    ],
)
def test_hand_over_with_a_derived_array_alive_raises(derive):
    buffer = MappedBuffer(8, backend="host")
    part = derive(buffer.numpy())
    with pytest.raises(errors.BufferStateError, match=r"1 array\(s\) derived from numpy"):
        buffer.tensor()
    part[...] = 0  # still the writer's turn
    del part
    buffer.tensor()


def test_turns_alternate_and_a_copy_is_independent_of_the_next_one():
    buffer = MappedBuffer(8, backend="host")
    for value in range(5):
        buffer.numpy()[...] = value
        tensors = [buffer.tensor() for _ in range(5)]  # which may read at once
        assert buffer.readers == 5
        tensors.pop()
        assert buffer.readers == 4
        assert float(tf.reduce_sum(tensors[0])) == 8 * value
        tensors.clear()
    buffer.numpy()[...] = 1
    before = zero_copy.statistics()
    copied = buffer.tensor(mode="copy")
    assert zero_copy.statistics().copied_bytes - before.copied_bytes >= 32
    buffer.numpy()[...] = 2
    assert float(copied[0]) == 1.0


@pytest.mark.parametrize("seed", range(4))
def test_release_in_any_order_and_from_any_thread_returns_memory(pool, seed):
    chance = random.Random(seed)
    things = []
    for _ in range(100):
        buffer = MappedBuffer(chance.randrange(1, 5000), backend=pool)
        things.append([buffer])
        if chance.random() < 0.7:
            buffer.numpy()[...] = 1
            tensor = buffer.tensor()
            things += [[tensor], [zero_copy.as_array(tensor)]]
            del tensor
        else:
            things.append([buffer.numpy()])
        del buffer
    chance.shuffle(things)
    parts = [things[index::3] for index in range(3)]
    things.clear()

    def drop(part):
        while part:
            part.pop()

    threads = [threading.Thread(target=drop, args=(part,)) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    assert pool.sizes()[0] == 0


def test_what_cannot_be_and_use_after_close_are_refused():
    with pytest.raises(ValueError, match="backend must be"):
        MappedBuffer(4, backend="gpu")
    buffer = MappedBuffer(4, backend="host")
    with pytest.raises(ValueError, match="device must be"):
        buffer.tensor("TPU:0")
    with pytest.raises(ValueError, match="mode must be"):
        buffer.tensor(mode="fast")
    with pytest.raises(TypeError, match="memory of one process"):
        pickle.dumps(buffer)
    assert "write" in repr(buffer)
    for _ in range(2):
        buffer.close()
    assert "closed" in repr(buffer)
    for use in (buffer.numpy, buffer.tensor):
        with pytest.raises(errors.BufferStateError, match="closed"):
            use()
    empty = MappedBuffer((0, 3), "int32", backend="host")
    assert empty.numpy().shape == empty.tensor().shape == (0, 3)
    assert MappedBuffer((), backend="host").tensor().shape == ()


@pytest.mark.skipif(
    bool(tf.config.list_physical_devices("GPU")), reason="shows what a machine without GPU answers"
)
def test_without_a_gpu_the_reason_is_given():
    buffer = MappedBuffer(4)
    assert buffer.backend == "host"
    with pytest.raises(errors.NativeUnavailableError, match="CUDA driver"):
        MappedBuffer(4, backend="cuda")
    with pytest.raises(errors.BufferError, match="TensorFlow has no GPU:0"):
        buffer.tensor("GPU:0")
    with pytest.raises(errors.BufferError, match="not mapped into GPU 0"):
        buffer.tensor("GPU:0", mode="zero_copy")
    assert "write" in repr(buffer)
    with pytest.raises(errors.NativeUnavailableError):
        zero_copy.measure_crossover()


@pytest.mark.gpu
def test_gpu_reads_mapped_memory_in_place():
    if not tf.config.list_physical_devices("GPU"):
        pytest.skip("needs a GPU that TensorFlow sees")
    buffer = MappedBuffer((256, 256), backend="cuda")
    for value in (1, 2, 3):
        buffer.numpy()[...] = value
        tensor = buffer.tensor("GPU:0", mode="zero_copy")
        assert "GPU:0" in tensor.device
        assert float(tf.reduce_sum(tensor)) == 65536.0 * value
        del tensor
        buffer.numpy()[...] = value
        copied = buffer.tensor("GPU:0", mode="copy")
        assert float(tf.reduce_sum(copied)) == 65536.0 * value
        del copied


@pytest.fixture
def stored(monkeypatch, tmp_path):
    """Returns the file of the crossovers, which this process has not read yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    stored_crossovers.cache_clear()
    yield tmp_path / "overlap_train" / "zero_copy.json"
    stored_crossovers.cache_clear()


@pytest.mark.parametrize("content", ["{", "[]", '{"a GPU": -1}', '{"a GPU": true}', "\x00\xff"])
def test_damaged_cache_counts_as_empty(stored, content):
    stored.parent.mkdir()
    stored.write_text(content, encoding="latin-1")
    assert stored_crossovers() == {}
    keep_crossover("a GPU", 1)
    assert json.loads(stored.read_text()) == {"a GPU": 1}


def test_crossover_is_where_sharing_first_loses():
    timings = [
        SizeTiming(4096, 2.0, 1.0),
        SizeTiming(8192, 2.0, 1.9),
        SizeTiming(16384, 2.0, 2.5),
        SizeTiming(32768, 2.0, 1.0),
    ]
    assert find_crossover(timings) == 8192
    assert find_crossover(timings[2:]) == 0
    assert find_crossover([]) == 0
    assert find_crossover([SizeTiming(4096, 1.0, 1.0)]) == 0, "as quick is not quicker"
