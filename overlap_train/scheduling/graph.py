"""What runs, and on what: networks as graphs of layers, devices and their links, requests and jobs.

Free of TensorFlow. Frozen, or (a `Request`) owned by the thread that holds the engine's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from overlap_train._support.arguments import (
    freeze,
    require_count,
    require_items,
    require_mapping,
    require_real,
    require_text,
    short_repr,
)

REQUEST = -1
"""The source of a `Port` that names an input of the request, not the output of a layer."""

Run = Callable[[tuple[Any, ...]], Sequence[Any]]
"""A layer made callable: takes its input tensors in order, returns all its outputs, finished."""


@dataclass(frozen=True, slots=True)
class Port:
    """One tensor of a graph: output `index` of layer `source`, or of the request (`source` -1)."""

    source: int
    index: int = 0


@dataclass(frozen=True, slots=True)
class Work:
    """What a layer does, in quantities that do not depend on a device."""

    kind: str  # "conv", "depthwise", "dense", "merge" or "other"
    flops: float = 0.0  # for `batch` examples; a multiply-add counts two
    moved_bytes: float = 0.0  # activations read and written
    weight_bytes: float = 0.0  # parameters read; they do not grow with the batch
    batch: int = 1
    operations: int = 1  # kernels launched; a merged segment has the sum of its parts
    parts: tuple[Work, ...] = ()  # what was merged into this one

    def single_parts(self) -> tuple[Work, ...]:
        """Return the parts that were merged, or the work itself."""
        return self.parts or (self,)


def merge_work(works: Sequence[Work]) -> Work:
    """What several layers do together; its kind is that of the one with the most FLOPs."""
    if len(works) == 1:
        return works[0]
    parts = tuple(part for work in works for part in work.single_parts())
    return Work(
        max(parts, key=lambda part: part.flops).kind,
        sum(part.flops for part in parts),
        sum(part.moved_bytes for part in parts),
        sum(part.weight_bytes for part in parts),
        parts[0].batch,
        sum(part.operations for part in parts),
        parts,
    )


@dataclass(frozen=True, slots=True)
class Layer:
    """One node: a layer of the network or several neighbours merged into a segment."""

    name: str
    work: Work
    inputs: tuple[Port, ...]
    output_bytes: tuple[int, ...] = (0,)  # for `work.batch` examples
    runs: Mapping[str, Run] = field(default_factory=dict)  # by the name or the kind of a device
    alone: bool = False  # not to be merged with its neighbours


class LayerGraph:
    """Layers in topological order, and the same with large ones in `pieces`, for when cores are idle."""

    def __init__(
        self,
        layers: Sequence[Layer],
        outputs: Sequence[Port],
        *,
        input_bytes: Sequence[int] = (0,),
        name: str = "network",
        pieces: LayerGraph | None = None,
    ) -> None:
        self.name, self.layers, self.outputs = name, tuple(layers), tuple(outputs)
        self.input_bytes, self.pieces = tuple(input_bytes), pieces
        self.predecessors = tuple(
            tuple(sorted({port.source for port in layer.inputs} - {REQUEST})) for layer in self.layers
        )
        successors: list[list[int]] = [[] for _ in self.layers]
        for index, before in enumerate(self.predecessors):
            for source in before:
                successors[source].append(index)
        self.successors = tuple(tuple(after) for after in successors)

    def __len__(self) -> int:
        return len(self.layers)

    def __repr__(self) -> str:
        return f"LayerGraph({self.name!r}, {len(self.layers)} layers)"

    def port_bytes(self, port: Port) -> int:
        """The size of a tensor in bytes, for the batch that the graph's figures are for."""
        if port.source == REQUEST:
            return self.input_bytes[port.index]
        return self.layers[port.source].output_bytes[port.index]

    def edge_bytes(self, layer: Layer) -> tuple[tuple[int, int], ...]:
        """(source layer or -1, bytes) for each distinct tensor that a layer of this graph reads."""
        return tuple((port.source, self.port_bytes(port)) for port in dict.fromkeys(layer.inputs))


_MOST_SLOTS = 4096  # a thread each


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
        ValueError: the name is empty, or the number of slots is below 1.
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

    Raises:
        TypeError: a value has the wrong type.
        ValueError: there are no devices, names repeat, or a link does not name a device.
    """

    devices: Sequence[Device]
    transfers: Mapping[tuple[str, str], Transfer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        devices = require_items("devices", self.devices, Device, expected="a sequence of Device")
        names = [device.name for device in devices]
        if not names or len(set(names)) != len(names):
            raise ValueError(f"a platform needs devices with unique names, got {short_repr(names)}")
        freeze(self, devices=devices)
        self._check_transfers(names)

    def _check_transfers(self, names: Sequence[str]) -> None:
        expected = "a mapping from pairs of device names to Transfer"
        for pair, transfer in require_mapping("transfers", self.transfers, expected=expected).items():
            if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(transfer, Transfer)):
                raise TypeError(f"transfers must be {expected}; got {short_repr({pair: transfer})}")
            for name in pair:
                if name not in names:
                    raise ValueError(
                        f"transfers: no device is named {short_repr(name)}; the devices are "
                        f"{short_repr(names)}"
                    )

    @property
    def home(self) -> str:
        """The first CPU, whose memory holds the inputs and results of requests."""
        return next((device for device in self.devices if device.kind == "cpu"), self.devices[0]).name

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


_LARGEST_PRIORITY = 1 << 53  # a float has no integers beyond it


@dataclass(slots=True)
class RunningLayers:
    """How many layers run, and the seconds that they have run together."""

    count: int = 0
    total_s: float = 0.0
    at_s: float = 0.0

    def change(self, now_s: float, by: int) -> float:
        """Count layers that begin or end now; return the seconds so far."""
        self.total_s += self.count * (now_s - self.at_s)
        self.at_s, self.count = now_s, self.count + by
        return self.total_s


@dataclass(eq=False, slots=True)
class Request:
    """One inference through one network."""

    number: int
    graph: LayerGraph
    inputs: tuple[Any, ...] = ()
    arrival_s: float = 0.0  # on the engine's clock, as is the deadline
    priority: int = 0
    deadline_s: float | None = None
    examples: float = 1.0  # relative to the batch that the graph's figures are for
    # Called once with (request, outputs or None, error or None), on the thread that finished the last job.
    on_done: Callable[[Request, Any, BaseException | None], None] | None = None
    ran_s: float = 0.0  # in layers that have ended
    beside_s: float = 0.0  # that layers of other requests ran meanwhile, on all slots together
    running: RunningLayers = field(default_factory=RunningLayers)
    # When each layer that runs began, by index, and the seconds that others' layers had run by then.
    began: dict[int, tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False, slots=True)
class Job:
    """A layer of a request that is ready to run."""

    layer: Layer
    inputs: tuple[Any, ...]
    size_bytes: int
    request: Request
    index: int
    device: Device
    transfer_bytes: int = 0  # to be brought to the device from others
    transfer_s: float = 0.0
    predicted_s: float = 0.0  # transfers included
    urgency_s: float = 0.0  # smaller runs first
    rank: float = 0.0  # larger runs first among jobs that are equally urgent


def require_priority(name: str, value: object) -> int:
    """Return a priority as an int; raises TypeError, or ValueError where it cannot be weighed as a time."""
    return require_count(name, value, minimum=-_LARGEST_PRIORITY, maximum=_LARGEST_PRIORITY)


class _Timed(Protocol):
    """A request, or a submission that becomes one."""

    arrival_s: float
    priority: int
    deadline_s: float | None


_AGING_S = 1.0  # of waiting, which one unit of priority is worth


def urgency(request: _Timed, *, remaining_s: float) -> float:
    """When a request would have to arrive to rank where it does, in seconds of the engine's clock.

    A deadline ranks it as if it had arrived at the last moment at which it can start and still meet it, if
    that is earlier. Since later requests get later values without bound, none starves.
    """
    rank_s = request.arrival_s - request.priority * _AGING_S
    if request.deadline_s is not None:
        rank_s = min(rank_s, request.deadline_s - remaining_s - _AGING_S)
    return rank_s
