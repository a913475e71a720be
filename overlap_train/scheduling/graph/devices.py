"""Where layers run, and what it costs to carry a tensor from one place to another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from overlap_train._support.arguments import (
    freeze,
    require_count,
    require_items,
    require_mapping,
    require_real,
    require_text,
    shown,
)

_MOST_SLOTS = 4096  # a thread each

__all__ = ["Device", "Platform", "Transfer"]


@dataclass(frozen=True, slots=True)
class Device:
    """Describe a device that runs layers.

    Attributes:
        name: a name that is unique on its platform. The TensorFlow backend takes names such as "CPU:0" or
            "GPU:0", as `tf.device` does; for other backends it has no meaning.
        kind: "cpu" or "gpu". It selects the callable of a layer, and where the policy `paper` places layers.
        slots: number of layers that run at the same time, such as the number of cores; each has a worker
            thread.

    Raises:
        TypeError: a value has the wrong type.
        ValueError: the name is empty, or the number of slots is not possible.
    """

    name: str
    kind: str = "cpu"
    slots: int = 1

    def __post_init__(self) -> None:
        freeze(
            self,
            name=require_text("name", self.name),
            kind=require_text("kind", self.kind),
            slots=require_count("slots", self.slots, minimum=1, maximum=_MOST_SLOTS),
        )


@dataclass(frozen=True, slots=True)
class Transfer:
    """Describe the cost of moving a tensor between two devices: `latency_s + size_bytes / bandwidth`.

    `Transfer()` costs nothing, as with shared memory and zero-copy buffers.

    Raises:
        TypeError: a value has the wrong type.
        ValueError: the latency is negative, or the bandwidth is not positive.
    """

    latency_s: float = 0.0
    bytes_per_s: float = float("inf")

    def __post_init__(self) -> None:
        freeze(
            self,
            latency_s=require_real("latency_s", self.latency_s, minimum=0),
            bytes_per_s=require_real("bytes_per_s", self.bytes_per_s, above=0, infinite=True),
        )

    def seconds(self, size_bytes: float) -> float:
        """Return the seconds that a transfer of `size_bytes` takes."""
        return self.latency_s + size_bytes / self.bytes_per_s


_FREE = Transfer()


@dataclass(frozen=True)
class Platform:
    """Describe the devices of a machine and the links between them.

    Args:
        devices: the devices, in the order in which ties are broken.
        transfers: the cost for each pair (from, to) of device names; a missing pair costs nothing.
        home: the device whose memory holds the inputs and results of requests; None means the first CPU.

    Raises:
        TypeError: a value has the wrong type.
        ValueError: there are no devices, names repeat, or a link or `home` does not name a device.
    """

    devices: Sequence[Device]
    transfers: Mapping[tuple[str, str], Transfer] = field(default_factory=dict)
    home: str = ""

    def __post_init__(self) -> None:
        devices = require_items("devices", self.devices, Device, expected="a sequence of Device")
        names = [device.name for device in devices]
        if not names or len(set(names)) != len(names):
            raise ValueError(f"a platform needs devices with unique names, got {shown(names)}")
        freeze(self, devices=devices, home=require_text("home", self.home, empty=True))
        self._check_transfers(names)
        if self.home and self.home not in names:
            raise ValueError(f"home: no device is named {shown(self.home)}; the devices are {shown(names)}")
        if not self.home:
            home = next((device for device in self.devices if device.kind == "cpu"), self.devices[0])
            object.__setattr__(self, "home", home.name)

    def _check_transfers(self, names: Sequence[str]) -> None:
        expected = "a mapping from pairs of device names to Transfer"
        for pair, transfer in require_mapping("transfers", self.transfers, expected=expected).items():
            if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(transfer, Transfer)):
                raise TypeError(f"transfers must be {expected}; got {shown({pair: transfer})}")
            for name in pair:
                if name not in names:
                    raise ValueError(
                        f"transfers: no device is named {shown(name)}; the devices are {shown(names)}"
                    )

    def __getitem__(self, name: str) -> Device:
        for device in self.devices:
            if device.name == name:
                return device
        raise KeyError(f"no device is named {name!r}; the devices are {[d.name for d in self.devices]}")

    def of_kind(self, kind: str) -> tuple[Device, ...]:
        """Return the devices of a kind, such as "gpu".

        Raises:
            TypeError: `kind` is not text.
            ValueError: `kind` is empty.
        """
        kind = require_text("kind", kind)
        return tuple(device for device in self.devices if device.kind == kind)

    def transfer_s(self, source: str, target: str, size_bytes: float) -> float:
        """Return the seconds to bring `size_bytes` from device `source` to device `target`."""
        if source == target:
            return 0.0
        return self.transfers.get((source, target), _FREE).seconds(size_bytes)
