"""Memory and load: mapped memory beside a pinned copy (P3), its energy, and a network beside a load (P4)."""

from __future__ import annotations

import importlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from scripts.bench.load import DutyCycle
from scripts.gpu import check_zero_copy
from scripts.gpu.kernel_stages import arrays_of
from scripts.gpu.loading import without_tensorflow
from scripts.gpu.stages import Context, OutOfTime, Unavailable

__all__ = ["load", "mapped"]

_WINDOW_S = 10.0  # counters tick every 10 to 100 ms
_DUTIES = (0.0, 0.3, 0.6, 0.9)
_MULTIPROCESSORS = 32  # that the load occupies while it runs
_RUNS = 100  # for P3's milliwatt hours
_IMAGE = (1, 3, 224, 224)

# By kernel, what gives microseconds of each way for a size; what is wrong; the sizes in bytes.
_Ways = tuple[dict[str, Callable[[int], dict[str, float]]], list[str], tuple[int, ...]]


def mapped(context: Context) -> dict[str, Any]:
    """Time copies and mapped memory by size, then an inference each way, and what it costs in energy."""
    ways, wrong, sizes = _host_ways() if context.emulate else _device_ways(context)
    context.record.add("correct", {"wrong": wrong})
    for kernel, size in context.todo([(k, s) for k in ways for s in sizes], lambda i: f"{i[0]} {i[1]}"):
        context.record.add(f"{kernel} {size}", {"kernel": kernel, "bytes": size, "us": ways[kernel](size)})
    if not context.record.has("inference"):
        context.record.add("inference", _inference(context))
    return {"wrong": len(wrong), "crossover_bytes": _crossovers(context.record.rows)}


def _device_ways(context: Context) -> _Ways:
    torch = arrays_of(context).torch
    errors = without_tensorflow("errors")
    try:
        backend = without_tensorflow("zero_copy.cuda").CudaBackend()
    except errors.NativeUnavailableError as error:
        raise Unavailable(str(error)) from error
    pool = without_tensorflow("zero_copy.pool").Pool(backend)
    wrong = check_zero_copy.check(torch, pool)

    def timer(kernel: Callable[[Any], Any]) -> Callable[[int], dict[str, float]]:
        return lambda size: check_zero_copy.time_ways(torch, pool, size, kernel, 11 if context.quick else 31)

    ways = {name: timer(kernel) for name, kernel in check_zero_copy.kernels(torch).items()}
    return ways, wrong, check_zero_copy.SIZES


def _host_ways() -> _Ways:
    """Return a stand-in: ordinary memory from the pool, "copied" or read in place by NumPy."""
    pool = without_tensorflow("zero_copy.pool").Pool(without_tensorflow("zero_copy.pool").HostBackend())
    dlpack = without_tensorflow("zero_copy.dlpack")

    def time_ways(size: int) -> dict[str, float]:
        lease = pool.lease(size)
        array = dlpack.view(dlpack.Keeper(lease.block.address, (size // 4,), np.float32, lease))
        array[...] = 1
        ways = {
            "pageable_copy": lambda: array.copy().sum(),
            "pinned_copy": lambda: array.copy().sum(),
            "mapped": lambda: array.sum(),
        }
        return {way: _median_ms(work, 5) * 1e3 for way, work in ways.items()}

    return {"one_pass": time_ways}, [], check_zero_copy.SIZES[:3]


def _crossovers(rows: list[dict[str, Any]]) -> dict[str, int]:
    """Return for each kernel the largest size at which mapped memory is quicker than a pinned copy."""
    found: dict[str, int] = {}
    for row in rows:
        if "us" in row and row["us"]["mapped"] <= row["us"]["pinned_copy"]:
            found[row["kernel"]] = max(found.get(row["kernel"], 0), row["bytes"])
    return found


def _inference(context: Context) -> dict[str, Any]:
    """Return time and energy of P3's network, one image, from pinned and from mapped memory."""
    name, ways = _inference_ways(context)
    row: dict[str, Any] = {"network": name, "runs": _RUNS}
    row["milliseconds"] = {way: _median_ms(work, 3 if context.emulate else 50) for way, work in ways.items()}
    row["energy"] = _energy(context, ways)
    return row


def _inference_ways(context: Context) -> tuple[str, dict[str, Callable[[], object]]]:
    if context.emulate:
        image = np.ones((64, 64), np.float32)
        return "a product of matrices", {
            "pinned_copy": lambda: image.copy() @ image,
            "mapped": lambda: image @ image,
        }
    torch = arrays_of(context).torch
    name, network = _network(torch)
    pool = without_tensorflow("zero_copy.pool").Pool(without_tensorflow("zero_copy.cuda").CudaBackend())
    count = int(np.prod(_IMAGE))
    array, on_device = check_zero_copy.mapped_tensor(torch, pool.lease(count * 4), count)
    array[...] = 0.5
    pinned = torch.from_numpy(array.copy()).pin_memory()

    def infer(image: Any) -> object:
        with torch.inference_mode():
            return network(image.view(_IMAGE)).cpu()

    return name, {
        "pinned_copy": lambda: infer(pinned.cuda(non_blocking=True)),
        "mapped": lambda: infer(on_device),
    }


def _network(torch: Any) -> tuple[str, Callable[[Any], Any]]:
    """Return P3's GoogLeNet, or without torchvision a stack of convolutions."""
    try:
        models = importlib.import_module("torchvision.models")
        network = models.googlenet(weights=None, init_weights=False, aux_logits=False)
        return "GoogLeNet", network.eval().cuda()
    except ImportError:
        layers = [torch.nn.Conv2d(3, 64, 7, 2), *[torch.nn.Conv2d(64, 64, 3) for _ in range(20)]]
        return "21 convolutions (no torchvision here)", torch.nn.Sequential(*layers).eval().cuda()


def _energy(context: Context, ways: dict[str, Callable[[], object]]) -> dict[str, Any]:
    """Return milliwatt hours of `_RUNS` runs each way beyond the idle machine, or why there are none."""
    if context.emulate:
        return {"unavailable": "emulated: no energy is measured"}
    if context.left_s < _WINDOW_S * (1 + len(ways)):
        raise OutOfTime("too little time for the windows of the energy")
    energy = without_tensorflow("monitoring.energy")
    counters, missing = energy.find_counters()
    if not counters:
        return {"unavailable": "; ".join(f"{lack.source}: {lack.reason}" for lack in missing)}
    try:
        idle_s, idle_j, _ = _window(lambda: time.sleep(_WINDOW_S), counters)
        row: dict[str, Any] = {}
        for way, work in ways.items():
            seconds, joules, runs = _window(work, counters)
            net = {s: j - idle_j[s] / idle_s * seconds for s, j in joules.items()}
            row[way] = {source: net_j / runs * _RUNS / 3.6 for source, net_j in net.items()}
        return {"net_mwh": row, "idle_w": {source: j / idle_s for source, j in idle_j.items()}}
    finally:
        for counter in counters:
            counter.close()


def _window(work: Callable[[], object], counters: Any) -> tuple[float, dict[str, float], int]:
    before = {counter.source: counter.read_j() for counter in counters}
    began_s, runs, seconds = time.monotonic(), 0, 0.0
    while seconds < _WINDOW_S:
        work()
        runs += 1
        seconds = time.monotonic() - began_s
    return seconds, {c.source: c.read_j() - before[c.source] for c in counters}, runs


def _median_ms(work: Callable[[], object], repeats: int) -> float:
    times = []
    for repeat in range(repeats + 2):
        began_s = time.perf_counter()
        work()
        if repeat >= 2:
            times.append((time.perf_counter() - began_s) * 1e3)
    return statistics.median(times)


def load(context: Context) -> dict[str, Any]:
    """Time an inference beside a load that takes a share of the card for a share of the time (P4)."""
    name, infer, burden = _small_products() if context.emulate else _inference_and_burden(context)
    for duty in context.todo(_DUTIES, lambda duty: f"{duty:.0%}"):
        with DutyCycle(duty, burden) as generator:
            times = [_median_ms(infer, 1) for _ in range(5 if context.emulate else 100)]
        row = {"network": name, "duty": duty, "achieved": generator.achieved}
        row |= {"median_ms": statistics.median(times), "p90_ms": statistics.quantiles(times, n=10)[-1]}
        context.record.add(f"{duty:.0%}", row)
    return {"multiprocessors": _MULTIPROCESSORS, "network": name}


def _small_products() -> tuple[str, Callable[[], object], Callable[[], object]]:
    left = np.ones((96, 96), np.float32)
    return "a product of matrices", lambda: left @ left, lambda: left @ left


def _inference_and_burden(context: Context) -> tuple[str, Callable[[], object], Callable[[], object]]:
    torch = arrays_of(context).torch
    name, network = _network(torch)
    image = torch.full(_IMAGE, 0.5, device="cuda")

    def infer() -> object:
        with torch.inference_mode():
            return network(image).cpu()

    return name, infer, _burden(torch)


def _burden(torch: Any) -> Callable[[], object]:
    """Return some milliseconds of work for `_MULTIPROCESSORS` multiprocessors, on a stream of its own.

    cuBLAS gives each 128 × 128 values of a product to one block: so many rows occupy so many of them.
    """
    stream = torch.cuda.Stream()
    left = torch.randn(128 * _MULTIPROCESSORS, 2048, device="cuda")
    right = torch.randn(2048, 128, device="cuda")

    def work() -> None:
        with torch.cuda.stream(stream):
            result = left
            for _ in range(8):
                result = (result @ right) @ right.T * 1e-3
        stream.synchronize()

    return work
