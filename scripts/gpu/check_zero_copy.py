"""Checks and times mapped memory on a GPU without TensorFlow: ctypes for ours, PyTorch as the oracle.

    python -m scripts.gpu.check_zero_copy --json zero_copy_gpu.json

Needs NumPy, PyTorch with CUDA and a GPU; of this repository only the files. For each size and kernel it
times, from filled host memory to a result on the host: a copy from ordinary memory, a copy from pinned
memory, and the GPU reading mapped memory in place. Exits with 1 if a result is wrong.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from scripts.gpu.loading import without_tensorflow

SIZES = tuple(4096 << doublings for doublings in range(0, 15, 2))


def mapped_tensor(torch: Any, lease: Any, count: int) -> tuple[np.ndarray, Any]:
    """Returns a float32 array and a CUDA tensor of `count` elements on the same mapped block."""
    dlpack = without_tensorflow("zero_copy.dlpack")
    block = lease.block
    keeper = dlpack.Keeper(block.address, (count,), np.float32, lease)
    capsule = dlpack.capsule(keeper, device=dlpack.CUDA, index=0, address=block.device_address)
    return dlpack.view(keeper), torch.utils.dlpack.from_dlpack(capsule)


def check(torch: Any, pool: Any) -> list[str]:
    """Returns what is wrong."""
    wrong = []
    count = 1 << 16
    array, tensor = mapped_tensor(torch, pool.lease(count * 4), count)
    for seed in range(3):
        array[...] = np.random.default_rng(seed).integers(0, 100, count)
        if float(tensor.double().sum()) != float(array.sum(dtype=np.float64)):
            wrong.append("the GPU does not see what the CPU wrote")
    doubled = array.copy() * 2
    tensor.mul_(2)
    pool.backend.synchronize()
    if not np.array_equal(array, doubled):
        wrong.append("the CPU does not see what the GPU wrote")
    live = pool.statistics().live_bytes
    del array, tensor
    if pool.statistics().live_bytes >= live:
        wrong.append("the block did not come back when its last tensor died")
    return wrong


def time_ways(
    torch: Any, pool: Any, size_bytes: int, kernel: Callable[[Any], Any], repeats: int
) -> dict[str, float]:
    """Returns median microseconds of each way."""
    count = size_bytes // 4
    array, mapped = mapped_tensor(torch, pool.lease(size_bytes), count)
    array[...] = 1
    pageable = torch.from_numpy(array.copy())
    pinned = pageable.pin_memory()
    ways: dict[str, Callable[[], Any]] = {
        "pageable_copy": lambda: kernel(pageable.cuda()),
        "pinned_copy": lambda: kernel(pinned.cuda(non_blocking=True)),
        "mapped": lambda: kernel(mapped),
    }
    measured: dict[str, list[float]] = {way: [] for way in ways}
    for repeat in range(repeats + 3):
        for way, work in ways.items():
            torch.cuda.synchronize()
            begin = time.perf_counter()
            work().cpu()
            if repeat >= 3:
                measured[way].append((time.perf_counter() - begin) * 1e6)
    return {way: statistics.median(values) for way, values in measured.items()}


def kernels(torch: Any) -> dict[str, Callable[[Any], Any]]:
    weights = torch.ones((64, 64, 3, 3), device="cuda")
    return {
        "copy": lambda x: torch.neg(x)[:1],
        "one_pass": lambda x: x.sum(),
        "convolution": lambda x: torch.conv2d(x.view(1, 64, -1, 8), weights, padding=1)[0, 0, 0, :1],
    }


def main() -> int:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("--repeats", type=int, default=51)
    parser.add_argument("--json", help="where to write the results")
    options = parser.parse_args()
    import torch

    torch.zeros(1, device="cuda")
    backend = without_tensorflow("zero_copy.cuda").CudaBackend()
    pool = without_tensorflow("zero_copy.pool").Pool(backend)
    print(backend.attributes)
    wrong = check(torch, pool)
    results = {
        name: {size: time_ways(torch, pool, size, kernel, options.repeats) for size in SIZES}
        for name, kernel in kernels(torch).items()
    }
    for name, sizes in results.items():
        for size, ways in sizes.items():
            figures = " ".join(f"{way} {us:.1f} µs" for way, us in ways.items())
            print(f"{name:>12} {size >> 10:>7} KiB {figures}")
    if options.json:
        Path(options.json).write_text(
            json.dumps({"device": str(backend.attributes), "microseconds": results})
        )
    print("wrong: " + "; ".join(wrong) if wrong else "results are right")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
