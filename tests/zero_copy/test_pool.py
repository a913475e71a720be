"""Blocks, leases and their return; the pools of a process, and a GPU that is looked for once."""

import gc
import os
import random
import threading

import pytest

from overlap_train import errors
from overlap_train.zero_copy import cuda as module
from overlap_train.zero_copy.cuda import shared_pool
from overlap_train.zero_copy.pool import HostBackend, Pool


class CountingBackend(HostBackend):
    """Memory that can run out, and counts what it gave and got."""

    def __init__(self, budget_bytes=1 << 30, frees_anywhere=True):
        self.frees_anywhere = frees_anywhere
        self.budget_bytes = budget_bytes
        self.used_bytes = 0
        self.synchronized = 0

    def allocate(self, size_bytes):
        if self.used_bytes + size_bytes > self.budget_bytes:
            raise errors.BufferError(f"out of memory for {size_bytes} bytes")
        self.used_bytes += size_bytes
        return super().allocate(size_bytes)

    def release(self, block):
        assert not block.released, "freed twice"
        self.used_bytes -= block.size_bytes
        super().release(block)

    def synchronize(self):
        self.synchronized += 1


def test_cache_keeps_to_its_limit():
    pool = Pool(CountingBackend(), limit_bytes=1 << 20)
    leases = [pool.lease(300 << 10) for _ in range(10)]
    leases.clear()
    assert 0 < pool.sizes()[1] <= 1 << 20
    lease = pool.lease(300 << 10)
    block = lease.block
    del lease
    assert pool.lease(290 << 10).block is block


def test_cache_is_emptied_before_memory_is_said_to_be_out():
    backend = CountingBackend(budget_bytes=1 << 20)
    pool = Pool(backend)
    first = pool.lease(1 << 19)
    del first
    pool.lease(1 << 20)
    assert backend.used_bytes == 1 << 20
    with pytest.raises(errors.BufferError, match="out of memory"):
        pool.lease(1 << 21)
    with pytest.raises(errors.BufferError, match="cannot allocate"):
        HostBackend().allocate(1 << 60)


def test_block_that_the_device_may_still_read_waits_for_it():
    backend = CountingBackend()
    pool = Pool(backend)
    lease = pool.lease(256)
    lease.block.shown_to_device = True
    del lease
    assert backend.synchronized == 0
    lease = pool.lease(256)
    assert not lease.block.shown_to_device
    assert backend.synchronized == 1


def test_pinned_memory_is_freed_by_a_caller_only():
    backend = CountingBackend(frees_anywhere=False)
    pool = Pool(backend, limit_bytes=0)
    lease = pool.lease(256)
    lease.block.pid = os.getpid()
    del lease
    assert backend.used_bytes == 256
    pool.sizes()
    assert backend.used_bytes == 0


def test_lease_that_dies_while_its_pool_is_locked_does_not_hang():
    pool = Pool(CountingBackend())
    lease = pool.lease(256)
    with pool._lock:  # as when the garbage collector runs inside lease()
        del lease
        gc.collect()
    assert pool.sizes()[0] == 0


def test_leases_from_many_threads_never_share_a_block():
    pool = Pool(CountingBackend(), limit_bytes=1 << 20)
    held, guard, doubled = set(), threading.Lock(), []

    def work(seed):
        chance = random.Random(seed)
        for _ in range(500):
            lease = pool.lease(chance.choice([256, 512, 4096]))
            with guard:
                if lease.block.address in held:
                    doubled.append(lease.block.address)
                held.add(lease.block.address)
            with guard:
                held.discard(lease.block.address)
            del lease

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not doubled
    assert pool.sizes()[0] == 0


@pytest.fixture
def gpu(monkeypatch):
    """Returns how often a GPU was looked for; there is one if a test says so."""

    class Found(HostBackend):
        looked = 0
        there = False

        def __init__(self):
            Found.looked += 1
            if not Found.there:
                raise errors.NativeUnavailableError("no driver")
            super().__init__()

    monkeypatch.setattr(module, "CudaBackend", Found)
    monkeypatch.setattr(module, "_cuda", None)
    return Found


def test_without_a_gpu_auto_is_the_host_and_cuda_an_error_each_time(gpu):
    assert shared_pool("auto") is shared_pool("host") is shared_pool()
    for _ in range(2):
        with pytest.raises(errors.NativeUnavailableError, match="no driver") as raised:
            shared_pool("cuda")
        assert isinstance(raised.value.__cause__, errors.NativeUnavailableError)
    assert gpu.looked == 1


def test_with_a_gpu_auto_is_its_pool(gpu):
    gpu.there = True
    assert isinstance(shared_pool("host"), Pool)
    assert gpu.looked == 0
    assert shared_pool("auto") is shared_pool("cuda") is not shared_pool("host")
    assert gpu.looked == 1
