"""The CUDA backend against a stub library, compiled here, that records calls; no GPU takes part."""

import ctypes
import multiprocessing
import os
import shutil
import subprocess
from ctypes.util import find_library
from pathlib import Path

import pytest
import tensorflow as tf

from overlap_train import errors
from overlap_train.zero_copy import MappedBuffer
from overlap_train.zero_copy import buffer as buffer_module
from overlap_train.zero_copy.buffer import SizeTiming, measure_crossover
from overlap_train.zero_copy.cuda import CudaBackend, Driver
from overlap_train.zero_copy.pool import Pool
from overlap_train.zero_copy.tensors import stored_crossovers

SHIFT = 0x100000000000
ANSWERS = {"devices": 1, "version": 12040, "integrated": 0, "can_map": 1, "alignment": 4096}


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    compiler = next((path for name in ("cc", "gcc", "clang") if (path := shutil.which(name))), None)
    if compiler is None:
        pytest.skip("needs a C compiler for the stub of libcuda")
    target = tmp_path_factory.mktemp("stub") / "libstubcuda.so"
    source = Path(__file__).with_name("stub_cuda.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(target), str(source)], check=True)
    return target


class Stub:
    def __init__(self, path):
        self.path = path
        self._library = ctypes.CDLL(str(path))
        self._library.stub_calls.restype = ctypes.c_char_p
        self._library.stub_reset()

    def fail(self, function, code):
        self._library.stub_fail(function.encode(), code)

    def answer(self, **answers):
        self._library.stub_set(*(ANSWERS | answers).values())

    @property
    def calls(self):
        return self._library.stub_calls().decode().split()

    @property
    def live_blocks(self):
        return self._library.stub_live_blocks()

    @property
    def context_depth(self):
        return self._library.stub_context_depth()

    def backend(self):
        return CudaBackend(Driver(self.path))


@pytest.fixture
def stub(library):
    stub = Stub(library)
    yield stub
    assert stub.context_depth == 0, "a context was left on the stack"


def test_block_is_pinned_mapped_and_freed_once(stub):
    backend = stub.backend()
    block, other = backend.allocate(1000), backend.allocate(1000)
    assert block.device_address == block.address + SHIFT
    assert block.address % 256 == 0
    assert stub.live_blocks == 2
    for _ in range(2):
        backend.release(block)
    assert (stub.calls.count("cuMemFreeHost"), stub.live_blocks) == (1, 1)
    # One that somebody else freed is an exception, and not freed again.
    assert ctypes.CDLL(str(stub.path)).cuMemFreeHost(ctypes.c_void_p(other.address)) == 0
    with pytest.raises(errors.BufferError, match=r"cuMemFreeHost failed with CUDA_ERROR_OTHER \(1\)"):
        backend.release(other)
    backend.release(other)
    assert stub.calls.count("cuMemFreeHost") == 3


def test_allocation_failure_empties_the_cache_first(stub):
    pool = Pool(stub.backend())
    del_me = pool.lease(1000)
    del del_me
    assert pool.sizes()[1]
    stub.fail("cuMemHostAlloc", 2)
    with pytest.raises(errors.BufferError, match="OUT_OF_MEMORY"):
        pool.lease(1 << 20)
    assert stub.live_blocks == 0


@pytest.mark.parametrize(
    ("prepare", "match"),
    [
        (lambda stub: stub.fail("cuMemHostGetDevicePointer_v2", 1), "cuMemHostGetDevicePointer_v2"),
        (lambda stub: stub.answer(alignment=16), "not 256-aligned"),
    ],
)
def test_block_that_cannot_be_mapped_or_is_misaligned_is_not_leaked(stub, prepare, match):
    prepare(stub)
    with pytest.raises(errors.BufferError, match=match):
        stub.backend().allocate(1000)
    assert stub.live_blocks == 0


@pytest.mark.parametrize(
    ("prepare", "match"),
    [
        (lambda stub: stub.answer(devices=0), "the CUDA driver shows no GPU .see CUDA_VISIBLE_DEVICES"),
        (lambda stub: stub.fail("cuDeviceGetCount", 100), "shows no GPU: .*CUDA_ERROR_NO_DEVICE"),
        (lambda stub: stub.fail("cuInit", 100), "does not start: .*CUDA_ERROR_NO_DEVICE"),
        (lambda stub: stub.answer(can_map=0), "Stub GPU cannot map host memory"),
    ],
)
def test_machine_without_a_usable_gpu_is_told_why(stub, prepare, match):
    prepare(stub)
    with pytest.raises(errors.NativeUnavailableError, match=match):
        stub.backend()


def test_library_that_is_missing_or_lacks_a_function_is_told(tmp_path):
    with pytest.raises(errors.NativeUnavailableError, match="no CUDA driver library here"):
        Driver(tmp_path / "libcuda.so.1")
    name = find_library("m") or find_library("c") or pytest.skip("needs some other shared library to load")
    with pytest.raises(errors.NativeUnavailableError, match="has no cu"):
        Driver(name)


def test_each_hand_over_waits_for_the_device(stub):
    buffer = MappedBuffer(100, backend=Pool(stub.backend()))
    buffer.numpy()[...] = 2
    waited = stub.calls.count("cuCtxSynchronize")
    tensor = buffer.tensor("CPU:0")
    assert stub.calls.count("cuCtxSynchronize") == waited + 1
    assert float(tf.reduce_sum(tensor)) == 200.0
    del tensor
    buffer.numpy()
    assert stub.calls.count("cuCtxSynchronize") == waited + 2
    stub.fail("cuCtxSynchronize", 700)
    with pytest.raises(errors.BufferError, match="cuCtxSynchronize"):
        buffer.tensor()


def test_tensorflow_without_a_gpu_refuses_the_capsule_and_nothing_is_freed_twice(cases):
    code = """
import gc, weakref
from overlap_train.zero_copy import tensors
class Owner: pass
result = []
for _ in range(5):
    memory = zero_copy.empty(64)
    start = memory.ctypes.data
    owner = Owner()
    watch = weakref.ref(owner)
    try:
        tensors.share(start, (64,), memory.dtype, owner, gpu=0, device_address=start)
    except errors.BufferError as error:
        result.append("refused" in str(error))
    del owner
    gc.collect()
    assert watch() is None, "the memory is still held"
"""
    assert cases.result(code) == [True] * 5


def test_a_device_is_described_and_the_memory_of_a_tensor_freed_with_it(stub):
    stub.answer(integrated=1, version=13000)
    backend = stub.backend()
    attributes = backend.attributes
    assert (attributes.name, attributes.integrated, attributes.driver_version) == ("Stub GPU", True, 13000)
    pool = Pool(backend, limit_bytes=0)
    tensor = MappedBuffer(100, backend=pool).tensor()
    assert stub.live_blocks == 1
    del tensor
    pool.sizes()
    assert stub.live_blocks == 0


def _in_child(pool, queue):
    try:
        pool.lease(64)
    except errors.BufferStateError as error:
        queue.put(str(error))


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_forked_process_neither_uses_nor_frees_pinned_memory(stub):
    pool = Pool(stub.backend(), limit_bytes=0)
    lease = pool.lease(64)
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=_in_child, args=(pool, queue))
    child.start()
    assert "does not survive a fork" in queue.get()
    child.join()
    assert child.exitcode == 0
    del lease
    pool.sizes()
    assert stub.live_blocks == 0


def test_mapped_memory_is_shared_with_a_gpu_up_to_the_crossover_that_was_measured(
    stub, monkeypatch, tmp_path
):
    """With a TensorFlow that claims one GPU; no tensor is made, and the times are made up."""

    def time(size):
        return SizeTiming(size, 2.0, 1.0 if size < 9000 else 3.0)

    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["one"])
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: ["one"])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    stored_crossovers.cache_clear()
    backend = stub.backend()
    monkeypatch.setattr(buffer_module, "shared_pool", lambda name: Pool(backend))
    monkeypatch.setattr(buffer_module, "_time", time)
    buffer = MappedBuffer(1024, backend=Pool(backend))
    assert not buffer.choice("GPU:0").zero_copy
    assert "no crossover has been measured" in buffer.choice("GPU:0").reason
    assert buffer.choice("GPU:0", mode="zero_copy").zero_copy
    assert not buffer.choice("GPU:0", mode="copy").zero_copy
    assert measure_crossover().crossover_bytes == 4096
    assert buffer.choice("GPU:0").zero_copy
    assert not MappedBuffer(1025, backend=Pool(backend)).choice("GPU:0").zero_copy
    stored_crossovers.cache_clear()
    assert buffer.choice("GPU:0").zero_copy, "in another process, too"
    assert "not mapped into GPU 1" in buffer.choice("GPU:1").reason
    stub.answer(integrated=1)
    assert MappedBuffer(1 << 20, backend=Pool(stub.backend())).choice("GPU:0").zero_copy
    stored_crossovers.cache_clear()
