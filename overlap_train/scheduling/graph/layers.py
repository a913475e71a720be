"""The network as the scheduler sees it: layers, what they cost, and who waits for whom.

Everything here is immutable and free of TensorFlow; any thread may read it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from overlap_train._support.arguments import require_count, require_each, require_items, require_text

__all__ = ["REQUEST", "Layer", "LayerGraph", "Port", "Run", "Work", "merge_work"]

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

    kind: str  # "conv", "depthwise", "dense", "norm", "activation", "pool", "merge", "reshape", ...
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
    # Of a layer that joins pieces: the layer in one piece, which may run instead of the pieces and the join.
    whole: Layer | None = None

    def ports(self) -> tuple[Port, ...]:
        """What it reads in either form."""
        return self.inputs if self.whole is None else (*self.inputs, *self.whole.inputs)


def _size(name: str, value: object) -> int:
    return require_count(name, value, minimum=0)


class LayerGraph:
    """A directed acyclic graph of layers in topological order."""

    def __init__(
        self,
        layers: Sequence[Layer],
        outputs: Sequence[Port],
        *,
        input_bytes: Sequence[int] = (0,),
        name: str = "network",
    ) -> None:
        self.name = require_text("name", name)
        self.layers = require_items("layers", layers, Layer, expected="a sequence of Layer")
        self.outputs = require_items("outputs", outputs, Port, expected="a sequence of Port")
        sizes = require_each("input_bytes", input_bytes, _size, expected="a sequence of sizes in bytes")
        self.input_bytes = sizes
        self._check()
        self.predecessors = tuple(
            tuple(sorted({port.source for port in layer.inputs} - {REQUEST})) for layer in self.layers
        )
        successors: list[list[int]] = [[] for _ in self.layers]
        for index, before in enumerate(self.predecessors):
            for source in before:
                successors[source].append(index)
        self.successors = tuple(tuple(after) for after in successors)
        self.pieces = tuple(self._pieces(layer) for layer in self.layers)
        """For each layer that joins pieces, which they are; () for every other layer."""
        self.joins: Mapping[int, int] = {
            piece: join for join, pieces in enumerate(self.pieces) for piece in pieces
        }
        """For each piece, the layer that joins it with the others."""
        self._check_pieces()

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

    def form(self, index: int, *, whole: bool) -> Layer:
        """Layer `index`, or what runs in its place when its pieces do not."""
        layer = self.layers[index]
        return layer.whole if whole and layer.whole is not None else layer

    def _pieces(self, layer: Layer) -> tuple[int, ...]:
        if layer.whole is None:
            return ()
        others = {port.source for port in layer.whole.inputs}
        return tuple(sorted({port.source for port in layer.inputs} - others - {REQUEST}))

    def _check(self) -> None:
        if not self.layers:
            raise ValueError(f"{self.name}: layers is empty; a graph needs at least one layer")
        wholes = (layer.whole for layer in self.layers if layer.whole is not None)
        names = [layer.name for layer in (*self.layers, *wholes)]
        if len(set(names)) != len(names):
            repeated = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"{self.name}: layer names must be unique, {repeated!r} repeats")
        for index, layer in enumerate(self.layers):
            for port in layer.ports():
                self._check_port(port, index, f"layer {layer.name!r}")
            if layer.whole is not None and layer.whole.output_bytes != layer.output_bytes:
                raise ValueError(f"{self.name}: layer {layer.name!r} and its whole differ in their outputs")
        for port in self.outputs:
            self._check_port(port, len(self.layers), "the output")

    def _check_pieces(self) -> None:
        """What is left out must be missed by nobody, and what runs instead must find its inputs."""
        for piece, join in self.joins.items():
            layer, whole = self.layers[join], self.form(join, whole=True)
            found = {port for other in self.pieces[join] for port in self.layers[other].inputs}
            if not set(whole.inputs) <= found | set(layer.inputs):
                raise ValueError(
                    f"{self.name}: {whole.name!r} reads what neither its pieces nor their join read"
                )
            if not set(self.layers[piece].inputs) <= set(whole.inputs):
                raise ValueError(
                    f"{self.name}: {self.layers[piece].name!r} reads what {whole.name!r} does not"
                )
            if self.successors[piece] != (join,) or any(port.source == piece for port in self.outputs):
                raise ValueError(f"{self.name}: {self.layers[piece].name!r} is read by others than its join")

    def _check_port(self, port: Port, before: int, reader: str) -> None:
        if port.source == REQUEST:
            if not 0 <= port.index < len(self.input_bytes):
                raise ValueError(
                    f"{self.name}: {reader} reads input {port.index}, a request has {len(self.input_bytes)} "
                    "by input_bytes"
                )
        elif not 0 <= port.source < before:
            raise ValueError(
                f"{self.name}: {reader} reads layer {port.source}, expected one before it "
                f"(0 to {before - 1}); order the layers topologically"
            )
        elif not 0 <= port.index < len(self.layers[port.source].output_bytes):
            raise ValueError(
                f"{self.name}: {reader} reads output {port.index} of layer {port.source}, which has "
                f"{len(self.layers[port.source].output_bytes)}"
            )
