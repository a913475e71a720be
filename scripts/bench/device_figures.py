"""Devices as figures: a roofline with a fixed cost for each operation, to simulate machines not at hand.

`xavier()` is modelled on the paper's Jetson AGX Xavier. The peaks are NVIDIA's published ones; the
efficiencies and the cost of an operation are assumptions, named in `XAVIER_FIGURES` so that a reader
can judge and change them. Whatever comes out is simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from overlap_train.scheduling.graph.devices import Device, Platform, Transfer
from overlap_train.scheduling.graph.layers import Layer, Work

__all__ = ["XAVIER_FIGURES", "DeviceFigures", "roofline", "xavier"]


@dataclass(frozen=True)
class DeviceFigures:
    """One slot of a device.

    Attributes:
        flops_per_s: peak.
        bytes_per_s: of memory.
        operation_s: fixed cost of each operation: framework, launch, synchronisation.
        efficiency: the share of the peak that a kind of layer reaches; "" for all others.
    """

    flops_per_s: float
    bytes_per_s: float
    operation_s: float
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
