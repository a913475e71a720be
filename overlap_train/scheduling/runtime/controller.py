"""The layer controller and its synch checker: which layers of a request may run (paper P4, figure 3).

A controller belongs to one request and is touched only under the engine's lock.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from overlap_train._support.arguments import shown
from overlap_train.errors import SchedulingError
from overlap_train.scheduling.graph.layers import REQUEST, LayerGraph, Port
from overlap_train.scheduling.graph.requests import Request

__all__ = ["LayerController", "SyncChecker"]


class SyncChecker:
    """Counts, for each layer, the layers that it still waits for."""

    def __init__(self, graph: LayerGraph) -> None:
        self._graph = graph
        self._missing = [len(before) for before in graph.predecessors]
        self._done = [False] * len(graph)
        self._held: list[list[int]] = [[] for _ in graph.layers]
        self.left = len(graph)
        self._free = len(self.first())  # layers that wait for nothing and are not done

    def hold(self, waits: Sequence[tuple[int, int]]) -> None:
        """Add orderings (before, after) that the graph does not ask for; before anything has run."""
        for before, after in self._pairs(waits):
            self._held[before].append(after)
            self._free -= not self._missing[after]
            self._missing[after] += 1
        self._require_free()

    def first(self) -> list[int]:
        """The layers that wait for nothing."""
        return [index for index, missing in enumerate(self._missing) if missing == 0]

    def complete(self, index: int) -> list[int]:
        """Mark a layer as done and return the layers that this releases."""
        if self._done[index] or self._missing[index]:
            state = "a second time" if self._done[index] else "before its inputs"
            raise SchedulingError(f"layer {self._graph.layers[index].name!r} completed {state}")
        self._done[index] = True
        self.left -= 1
        released = []
        for after in (*self._graph.successors[index], *self._held[index]):
            self._missing[after] -= 1
            if self._missing[after] == 0:
                released.append(after)
        self._free += len(released) - 1
        self._require_free()
        return released

    def _pairs(self, waits: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        try:
            pairs = [(operator.index(before), operator.index(after)) for before, after in waits]
        except (TypeError, ValueError):
            pairs = [(-1, -1)]
        if any(not 0 <= index < len(self._graph) for pair in pairs for index in pair):
            raise SchedulingError(
                "a policy's admit must return pairs (before, after) of layers, each from 0 to "
                f"{len(self._graph) - 1}; got {shown(waits)}"
            )
        return pairs

    def _require_free(self) -> None:
        """Raises where nothing can go on: whoever waits for the request would do so for ever."""
        if self.left and not self._free:
            raise SchedulingError(
                f"no layer of {self._graph.name!r} can run, and {self.left} are left: what the policy's "
                "admit returned must, with the graph's own edges, have no cycle"
            )


class LayerController:
    """Follows one request through its network and keeps the tensors that later layers will read.

    A tensor is let go as soon as its last reader is done, so a request holds no more than the widest
    cut of its graph.
    """

    def __init__(self, request: Request) -> None:
        self.request = request
        graph = request.graph
        self._graph = graph
        self._checker = SyncChecker(graph)
        self._tensors: dict[Port, Any] = {Port(REQUEST, i): x for i, x in enumerate(request.inputs)}
        self._readers: dict[Port, int] = {}
        for port in [*(p for layer in graph.layers for p in set(layer.inputs)), *graph.outputs]:
            self._readers[port] = self._readers.get(port, 0) + 1
        self.places: dict[int, str] = {}

    def start(self, waits: Sequence[tuple[int, int]] = ()) -> list[int]:
        """The layers that may run at once, with the orderings `waits` kept with the graph's own."""
        self._checker.hold(waits)
        return self._checker.first()

    @property
    def finished(self) -> bool:
        """Whether all layers are done."""
        return self._checker.left == 0

    def place(self, index: int, device: str) -> None:
        """Note that layer `index` runs, and leaves its outputs, on `device`."""
        self.places[index] = device

    def inputs(self, index: int) -> tuple[Any, ...]:
        """The tensors that layer `index` reads, in order (None where none were given)."""
        return tuple(self._tensors.get(port) for port in self.request.layer(index).inputs)

    def decide(self, index: int, whole: bool) -> None:
        """Whether layer `index` runs in one piece; before any of its pieces has begun.

        Then each piece is to be left out, with `skip`, when it is released.
        """
        layer = self._graph.layers[index]
        self.request.whole[index] = whole
        for port in set(self.request.layer(index).inputs) - set(layer.inputs):
            self._readers[port] = self._readers.get(port, 0) + 1

    def skip(self, index: int) -> list[int]:
        """A piece of a layer that runs whole counts as done; returns the layers released."""
        return self.complete(index, None)

    def complete(self, index: int, outputs: Sequence[Any] | None) -> list[int]:
        """Store the outputs of a layer, drop what no layer reads any more, return the layers released."""
        layer = self.request.layer(index)
        if outputs is not None:
            if len(outputs) != len(layer.output_bytes):
                raise SchedulingError(
                    f"layer {layer.name!r} returned {len(outputs)} outputs, "
                    f"it declares {len(layer.output_bytes)}"
                )
            for number, tensor in enumerate(outputs):
                if Port(index, number) in self._readers:
                    self._tensors[Port(index, number)] = tensor
        for port in set(layer.inputs):
            self._readers[port] -= 1
            if not self._readers[port]:
                self._tensors.pop(port, None)
        return self._checker.complete(index)

    def outputs(self) -> tuple[Any, ...]:
        """The request's results; call it once it is `finished`."""
        return tuple(self._tensors.get(port) for port in self._graph.outputs)
