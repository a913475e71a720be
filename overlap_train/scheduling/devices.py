"""Where layers run, and what it costs to carry a tensor from one place to another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["Device", "Platform", "Transfer"]


@dataclass(frozen=True, slots=True)
class Device:
    """A place that runs layers.

    Attributes:
        name: unique on its platform. The TensorFlow backend takes names such as "CPU:0" or "GPU:0" as
            `tf.device` does; other backends attach no meaning to it.
        kind: "cpu" or "gpu"; chooses the callable of a layer and what `paper` puts where.
        slots: how many layers it runs at a time, such as the number of cores; one worker thread each.
    """

    name: str
    kind: str = "cpu"
    slots: int = 1

    def __post_init__(self) -> None:
        if self.slots < 1:
            raise ValueError(f"device {self.name!r} needs at least one slot, got {self.slots}")


@dataclass(frozen=True, slots=True)
class Transfer:
    """The cost of moving a tensor between two devices: `latency_s + size_bytes / bandwidth`.

    Shared memory and zero-copy buffers are `Transfer()`: nothing at all.
    """

    latency_s: float = 0.0
    bytes_per_s: float = float("inf")

    def seconds(self, size_bytes: float) -> float:
        return self.latency_s + size_bytes / self.bytes_per_s


_FREE = Transfer()


@dataclass(frozen=True)
class Platform:
    """The devices of a machine and the links between them.

    Args:
        devices: in the order in which ties are broken.
        transfers: for a pair (from, to) of device names; a pair that is missing is free, as is
            staying where one is. Requests arrive and results are collected at `home`.
        home: the device whose memory holds the inputs of a request; the first CPU unless given.

    Raises:
        ValueError: no devices, names that repeat, a link or home that names no device.
    """

    devices: Sequence[Device]
    transfers: Mapping[tuple[str, str], Transfer] = field(default_factory=dict)
    home: str = ""

    def __post_init__(self) -> None:
        names = [device.name for device in self.devices]
        if not names or len(set(names)) != len(names):
            raise ValueError(f"a platform needs devices with unique names, got {names}")
        unknown = {name for pair in self.transfers for name in pair} - set(names)
        if self.home:
            unknown |= {self.home} - set(names)
        if unknown:
            raise ValueError(f"no device is named {sorted(unknown)}; the devices are {names}")
        if not self.home:
            home = next((device for device in self.devices if device.kind == "cpu"), self.devices[0])
            object.__setattr__(self, "home", home.name)

    def __getitem__(self, name: str) -> Device:
        for device in self.devices:
            if device.name == name:
                return device
        raise KeyError(f"no device is named {name!r}; the devices are {[d.name for d in self.devices]}")

    def of_kind(self, kind: str) -> tuple[Device, ...]:
        return tuple(device for device in self.devices if device.kind == kind)

    def transfer_s(self, source: str, target: str, size_bytes: float) -> float:
        """Seconds to bring `size_bytes` from device `source` to device `target`."""
        if source == target:
            return 0.0
        return self.transfers.get((source, target), _FREE).seconds(size_bytes)
