"""The pools of a process: one for the host, one for the GPU if there is one, which is found out once."""

from __future__ import annotations

import pytest

from overlap_train import errors
from overlap_train.zero_copy import pools as module
from overlap_train.zero_copy.pool import HostBackend, Pool
from overlap_train.zero_copy.pools import shared_pool


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
    assert shared_pool("auto") is shared_pool("cuda")
    assert shared_pool("auto") is not shared_pool("host")
    assert gpu.looked == 1


def test_the_host_alone_looks_for_no_gpu(gpu):
    assert isinstance(shared_pool("host"), Pool)
    assert gpu.looked == 0


@pytest.mark.parametrize("backend", ["gpu", "", None, 3])
def test_other_names_are_refused(gpu, backend):
    with pytest.raises(ValueError, match='backend must be "auto", "host", "cuda" or a Pool'):
        shared_pool(backend)


def test_a_fork_goes_without_the_gpu_of_its_parent(gpu):
    gpu.there = True
    shared_pool("cuda")
    module._after_fork()
    with pytest.raises(errors.NativeUnavailableError, match="CUDA does not survive a fork"):
        shared_pool("cuda")
    assert shared_pool("auto") is shared_pool("host")


def test_a_fork_of_one_that_had_not_looked_looks_itself(gpu):
    module._after_fork()
    gpu.there = True
    assert shared_pool("auto") is shared_pool("cuda")
