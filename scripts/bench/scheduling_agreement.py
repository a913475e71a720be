"""The simulator against real threads: the same graphs, policies and durations.

The layers of the real run wait on a clock instead of computing, so they take the durations that the
simulator was told, and what is compared is the scheduling.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

from overlap_train.records import Span
from overlap_train.scheduling import Arrival, Device, Engine, Platform, simulate
from overlap_train.scheduling.costs.model import FixedCosts
from overlap_train.scheduling.graph.layers import Layer, LayerGraph, Port, Work
from overlap_train.scheduling.graph.requests import Job, Request

__all__ = ["compare", "instance", "run_threads"]

_Seconds = Callable[[Layer, Device], float]


def instance(
    seed: int, *, networks: int = 4, layers: int = 12, scale: float = 3.0
) -> tuple[list[LayerGraph], Platform, _Seconds]:
    """Random networks for two CPU cores and a GPU; layers of 3 to 50 ms with `scale` 3."""
    rng = random.Random(seed)
    table: dict[tuple[str, str], float] = {}
    graphs = []
    for number in range(networks):
        members: list[Layer] = []
        for index in range(layers):
            reads = {index - 1} if rng.random() < 0.6 else set(rng.choices(range(-1, index), k=2))
            kind, gpu_s = rng.choice(("conv", "norm")), rng.uniform(1, 5) * 1e-3 * scale
            name = f"{number}/{index}"
            members.append(Layer(name, Work(kind), tuple(Port(r) for r in sorted(reads))))
            table[name, "gpu"] = gpu_s
            table[name, "cpu"] = gpu_s * (rng.uniform(2, 4) if kind == "conv" else rng.uniform(0.3, 2))
        graphs.append(LayerGraph(members, [Port(layers - 1)], name=f"network{number}"))
    platform = Platform((Device("cpu", "cpu", slots=2), Device("gpu", "gpu")))
    return graphs, platform, lambda layer, device: table[layer.name, device.kind]


def run_threads(
    graphs: Sequence[LayerGraph], platform: Platform, policy: str, true_s: _Seconds
) -> list[Span]:
    """Runs all networks at once on the engine's threads; the spans of their layers."""
    clock, left = threading.Event(), threading.Semaphore(0)
    spans: list[Span] = []

    class Recorder:
        def add(self, span: Span) -> None:
            spans.append(span)

    def backend(job: Job) -> list[None]:
        clock.wait(true_s(job.layer, job.device))
        return [None for _ in job.layer.output_bytes]

    engine = Engine(platform, policy, costs=FixedCosts(true_s), backend=backend, recorder=Recorder())
    with engine:
        for graph in graphs:
            engine.prepare(graph)
        for number, graph in enumerate(graphs):
            engine.start(Request(number, graph, (None,), on_done=lambda *_: left.release()))
        for _ in graphs:
            left.acquire()
    return spans


def compare(repeats: int = 3) -> list[dict[str, Any]]:
    """Makespans of threads and simulator for three policies on three instances, in seconds."""
    rows = []
    for seed in range(3):
        graphs, platform, true_s = instance(seed, scale=10.0)
        for policy in ("gpu_only", "paper", "earliest_finish"):
            simulated_s = simulate([Arrival(g) for g in graphs], platform, policy, true_s).makespan_s
            real_s = []
            for _ in range(repeats):
                spans = run_threads(graphs, platform, policy, true_s)
                real_s.append(max(s.end_s for s in spans) - min(s.start_s for s in spans))
            median_s = sorted(real_s)[len(real_s) // 2]
            rows.append(
                {
                    "marked": "measured here against simulated",
                    "seed": seed,
                    "policy": policy,
                    "simulated_s": simulated_s,
                    "threads_s": real_s,
                    "ratio": median_s / simulated_s,
                }
            )
    return rows
