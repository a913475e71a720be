"""Simulated: the paper's three experiments on Xavier-like figures, every policy next to GPU only.

The networks are the real ones, split from Keras. Run times come from a roofline with a fixed cost for each
operation, modelled on the paper's Jetson AGX Xavier: the peaks are NVIDIA's published ones; efficiencies and
costs of operations are assumptions, in `XAVIER_FIGURES`, so that a reader can judge and change them. The load
is a duty cycle that leaves us `SHARE` of the GPU while it is active. `SHARE` is chosen so that
GPU only grows by the 77% that the paper reports from no load to 60%; nothing else is fitted.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.optimize import linprog

from overlap_train.scheduling import CostModel, Device, Platform, Transfer
from overlap_train.scheduling.graph import Layer, LayerGraph, Work
from overlap_train.scheduling.segments import piece_shares
from overlap_train.scheduling.simulation import Arrival, BackgroundLoad, Simulation, simulate

_PIECES = 8  # of a large layer: for the GPU and seven Carmel cores
COLUMNS = {  # a policy, and into how many pieces large layers can be cut
    "gpu_only": ("gpu_only", 1),
    "cpu_only": ("cpu_only", 1),
    "paper": ("paper", 1),
    "earliest_finish": ("earliest_finish", 1),
    "earliest_finish, cut": ("earliest_finish", _PIECES),
}
MEMORY_BYTES_PER_S = 137e9  # LPDDR4x, shared by all devices; without contention each has what it can take
LOADS = (0.0, 0.4, 0.6, 0.9)
SHARE = 0.275
STEADY_S = 0.5  # five times what the cost model's factor of a device remembers
_GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True)
class DeviceFigures:
    """One slot of a device."""

    flops_per_s: float  # peak
    bytes_per_s: float  # of memory
    operation_s: float  # fixed cost of each operation: framework, launch, synchronisation
    # The share of the peak that a kind of layer reaches; "" for all others.
    efficiency: Mapping[str, float] = field(default_factory=lambda: {"": 0.5})

    def seconds(self, work: Work) -> float:
        return sum(self._single_s(part) for part in work.single_parts())

    def _single_s(self, work: Work) -> float:
        reached = self.efficiency.get(work.kind, self.efficiency[""])
        compute_s = work.flops / (self.flops_per_s * reached)
        memory_s = (work.moved_bytes + work.weight_bytes) / self.bytes_per_s
        return work.operations * self.operation_s + max(compute_s, memory_s)


XAVIER_FIGURES: Mapping[str, DeviceFigures] = {
    # Volta, 512 cores at 1.377 GHz, two operations each: 1.41 TFLOP/s. Of the 137 GB/s of the shared
    # LPDDR4x a kernel sees about 80.
    "gpu": DeviceFigures(1.41e12, 80e9, 250e-6, {"": 0.5, "depthwise": 0.05}),
    # One of eight Carmel cores at 2.26 GHz, 16 operations a cycle: 36 GFLOP/s.
    "cpu": DeviceFigures(36e9, 12e9, 40e-6, {"": 0.5, "depthwise": 0.2}),
}


def roofline(figures: Mapping[str, DeviceFigures]) -> Callable[[Layer, Device], float]:
    """Run times for the simulator from figures by device kind."""
    return lambda layer, device: figures[device.kind].seconds(layer.work)


def xavier() -> Platform:
    """Eight CPU cores and a GPU on shared memory: a tensor crosses for 10 µs of synchronisation."""
    link = Transfer(latency_s=10e-6)
    return Platform(
        (Device("CPU", "cpu", slots=8), Device("GPU", "gpu")), {("CPU", "GPU"): link, ("GPU", "CPU"): link}
    )


_TRUE_S = roofline(XAVIER_FIGURES)


@dataclass(frozen=True)
class Scenario:
    """Networks that start together, and what else runs on the GPU."""

    name: str
    networks: tuple[str, ...]
    loads: Mapping[str, BackgroundLoad]  # by the name of the row
    paper: float | None = None  # percent less than GPU only that the paper reports at 60% load


def _duty(period_s: float, share: float = SHARE) -> dict[str, BackgroundLoad]:
    return {f"{load:.0%}": BackgroundLoad(load, share, period_s) for load in LOADS}


# Shapes of load, not Rodinia itself: short kernels that share, long ones that do not, and a mixture.
BESIDE = {
    "short kernels": BackgroundLoad(0.6, 0.5, 2e-3),
    "long kernels": BackgroundLoad(0.6, SHARE, 50e-3),
    "alone on the GPU half the time": BackgroundLoad(0.5, 0.0, 20e-3),
}

SCENARIOS = (
    Scenario("8 DenseNet201", ("densenet201",) * 8, _duty(0.01), 52.1),
    Scenario("14 ResNet152", ("resnet152",) * 14, _duty(0.01), 70.5),
    Scenario("2 DenseNet201", ("densenet201",) * 2, _duty(0.01), 57.8),
    Scenario("2 ResNet152", ("resnet152",) * 2, _duty(0.01), 52.3),
    Scenario("2 VGG16", ("vgg16",) * 2, _duty(0.01), 60.5),
    Scenario("2 AlexNet", ("alexnet",) * 2, _duty(0.01), 61.7),
    Scenario("one of each", ("densenet201", "resnet152", "vgg16", "alexnet"), _duty(0.01)),
    Scenario("one of each, beside", ("densenet201", "resnet152", "vgg16", "alexnet"), BESIDE),
)


_Split = Callable[..., LayerGraph]


def paper_networks() -> dict[str, _Split]:
    """For the four networks and 224 by 224 images, by name, what splits each, cut as it is told."""
    import keras

    from overlap_train.models.alexnet import alexnet
    from overlap_train.scheduling.models import split_model

    applications = keras.applications
    models = (
        applications.DenseNet201(weights=None),
        applications.ResNet152(weights=None),
        applications.VGG16(weights=None),
        alexnet(),
    )
    return {model.name: lambda cut=None, model=model: split_model(model, cut=cut).graph for model in models}


def in_pieces(split: _Split, costs: CostModel) -> LayerGraph:
    """A network whole and in pieces, whose sizes follow the devices' speed under the load that is known."""
    whole = split()
    shares = {x.name: piece_shares(x, xavier(), costs, _PIECES) for x in whole.layers}
    return LayerGraph(
        whole.layers,
        whole.outputs,
        input_bytes=whole.input_bytes,
        name=whole.name,
        pieces=split(cut=shares.__getitem__),
    )


def run(
    graphs: Mapping[str, LayerGraph],
    networks: Sequence[str],
    policy: str,
    load: BackgroundLoad,
    costs: CostModel,
    *,
    steady_s: float = STEADY_S,
    memory_bytes_per_s: float = math.inf,
) -> list[Simulation]:
    """Simulates rounds of the same requests in the steady state.

    The cost model learns the load from jobs that it observes, which takes longer than one round of short
    requests, and what such a round takes depends on the moment of the load's period at which it begins. So
    rounds that together last `steady_s` go before, as many follow, and each begins at another moment of the
    period: multiples of the golden section, which fill it evenly.

    Returns:
        The rounds that follow, at least one; time 0 is the beginning of each.
    """
    rounds: list[Simulation] = []
    for _ in range(2):
        lasted_s, rounds = 0.0, []
        while not rounds or lasted_s < steady_s:
            phase_s = math.fmod(len(rounds) * _GOLDEN, 1.0) * load.period_s
            loads = {"GPU": replace(load, phase_s=phase_s)}
            arrivals = [Arrival(graphs[name]) for name in networks]
            options: dict[str, Any] = {
                "costs": costs,
                "loads": loads,
                "memory_bytes_per_s": memory_bytes_per_s,
            }
            rounds.append(simulate(arrivals, xavier(), policy, _TRUE_S, **options))
            lasted_s += rounds[-1].makespan_s
    return rounds


def every_form(graph: LayerGraph) -> list[Layer]:
    """All layers of a graph, also those of its pieces."""
    return [*graph.layers, *(graph.pieces.layers if graph.pieces is not None else ())]


def profiled(graphs: Sequence[LayerGraph]) -> CostModel:
    """A cost model that has seen every layer without load."""
    costs = CostModel()
    costs.add_profile(
        (x, d, _TRUE_S(x, d)) for graph in graphs for x in every_form(graph) for d in xavier().devices
    )
    return costs


def compare_policies(
    networks: Mapping[str, _Split], *, steady_s: float = STEADY_S, contention: bool = False
) -> list[dict[str, Any]]:
    """Every scenario under every load; with `contention` the devices share the memory's bandwidth."""
    rows, memory = [], MEMORY_BYTES_PER_S if contention else math.inf
    for scenario in SCENARIOS:
        whole = {name: networks[name]() for name in dict.fromkeys(scenario.networks)}
        for label, load in scenario.loads.items():
            makespan_s, graphs = {}, whole
            for column, (policy, pieces) in COLUMNS.items():
                costs = profiled(list(whole.values()))
                options = {"steady_s": steady_s, "memory_bytes_per_s": memory}
                if pieces > 1:  # which are cut once the load is known
                    run(whole, scenario.networks, policy, load, costs, **options)
                    graphs = {name: in_pieces(networks[name], costs) for name in whole}
                    costs = profiled(list(graphs.values()))
                rounds = run(graphs, scenario.networks, policy, load, costs, **options)
                makespan_s[column] = statistics.fmean(r.makespan_s for r in rounds)
            gpu_s = makespan_s["gpu_only"]
            rows.append(
                {
                    "marked": f"simulated, XAVIER_FIGURES{', shared memory' if contention else ''}",
                    "scenario": scenario.name,
                    "load": label,
                    "makespan_s": makespan_s,
                    "less_than_gpu_only_percent": {p: 100 * (1 - s / gpu_s) for p, s in makespan_s.items()},
                    "lower_bound_s": lower_bound_s(whole, scenario.networks, load),
                    "lower_bound_cut_s": lower_bound_s(graphs, scenario.networks, load),
                    "papers_hardware_percent": scenario.paper if label == "60%" else None,
                }
            )
    return rows


def lower_bound_s(graphs: Mapping[str, LayerGraph], networks: Sequence[str], load: BackgroundLoad) -> float:
    """No schedule of the scenario is shorter, even one that gives shares of a layer to both devices.

    The GPU gives its unloaded share, as on average over the phases of the load. Layers that are in a chain
    keep at most one CPU slot busy for each network, since all but a few layers of these networks form chains
    (parallel branches of ResNet and DenseNet are left out); the pieces of a layer may have all slots, and
    each device takes the faster form.
    """
    gpu, cpu = (xavier()[name] for name in ("GPU", "CPU"))
    speed = 1 - load.duty + load.duty * load.share
    rows = [row for name in networks for row in _least_s(graphs[name], gpu, cpu)]
    gpu_s, cpu_s, in_chain_s = (np.array(column) for column in zip(*rows, strict=True))
    gpu_s /= speed
    # The share of each layer on the CPU and the makespan, which is to be least.
    limits = [
        [*-gpu_s, -1.0],
        [*in_chain_s / min(cpu.slots, len(networks)), -1.0],
        [*cpu_s / cpu.slots, -1.0],
    ]
    solved = linprog(
        [*np.zeros(len(rows)), 1.0],
        A_ub=limits,
        b_ub=[-gpu_s.sum(), 0.0, 0.0],
        bounds=[*[(0.0, 1.0)] * len(rows), (0.0, None)],
    )
    return float(solved.fun)


def _least_s(graph: LayerGraph, gpu: Device, cpu: Device) -> list[tuple[float, float, float]]:
    """Seconds of each layer on the GPU, on a core, and on the one core of its network."""
    parts: dict[str, list[Layer]] = {}
    for layer in graph.pieces.layers if graph.pieces is not None else ():
        parts.setdefault(layer.name.rpartition("/")[0], []).append(layer)
    rows = []
    for layer in graph.layers:
        forms = [[layer], parts[layer.name]] if layer.name in parts else [[layer]]
        gpu_s, cpu_s = (min(sum(_TRUE_S(x, device) for x in form) for form in forms) for device in (gpu, cpu))
        rows.append((gpu_s, cpu_s, 0.0 if layer.name in parts else cpu_s))
    return rows
