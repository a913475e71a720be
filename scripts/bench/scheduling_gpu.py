"""On a GPU: ours beside GPU only, without load and under load. Not run where there is none."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

__all__ = ["measure_gpu"]


def measure_gpu(
    *, size: int = 224, requests: int = 16, repeats: int = 5, loads: tuple[float, ...] = (0.0, 0.6)
) -> Any:
    """Interleaved repeats of the four networks under `gpu_only` and `earliest_finish`.

    Returns:
        For each load its median seconds by policy, the load achieved, and the seconds that the simulator
        gives with the costs profiled here.
    """
    from overlap_train.scheduling import Arrival, MultiModelScheduler, simulate
    from overlap_train.scheduling.costs.model import CostModel
    from overlap_train.scheduling.runtime.tensorflow_backend import tensorflow_platform
    from scripts.bench.load import GpuLoad
    from scripts.bench.scheduling_measured import networks

    models, platform, costs = networks(size), tensorflow_platform(), CostModel()
    image = np.random.default_rng(0).random((1, size, size, 3), dtype=np.float32)
    schedulers = {
        policy: MultiModelScheduler(models, devices=platform, policy=policy, costs=costs, profile=True)
        for policy in ("gpu_only", "earliest_finish")
    }

    def once(policy: str) -> float:
        began_s = time.perf_counter()
        futures = [schedulers[policy].submit(name, image) for _ in range(requests) for name in models]
        for future in futures:
            future.result()
        return time.perf_counter() - began_s

    result: dict[str, Any] = {"marked": "measured here"}
    try:
        graphs = {name: schedulers["earliest_finish"].graph(name) for name in models}
        for duty in loads:
            seconds: dict[str, list[float]] = {policy: [] for policy in schedulers}
            with GpuLoad(duty) as load:
                for policy in schedulers:
                    once(policy)
                for _ in range(repeats):
                    for policy, row in seconds.items():
                        row.append(once(policy))
            arrivals = [Arrival(graphs[name]) for _ in range(requests) for name in models]
            predicted = {p: simulate(arrivals, platform, p, costs.seconds).makespan_s for p in schedulers}
            result[f"{duty:.0%}"] = {
                "seconds": {policy: float(np.median(row)) for policy, row in seconds.items()},
                "load_achieved": load.achieved,
                "simulated_s": predicted,
            }
    finally:
        for scheduler in schedulers.values():
            scheduler.close()
    return result
