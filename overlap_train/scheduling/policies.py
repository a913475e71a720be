"""Where a layer goes: the policies that look at one layer at a time.

`heft` and `oracle`, which plan whole requests, are in `planned_policies.py`. A policy's methods are called
under the engine's lock; one policy object serves one engine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from overlap_train.scheduling.board import Board
from overlap_train.scheduling.devices import Device, Platform
from overlap_train.scheduling.graph import REQUEST, LayerGraph
from overlap_train.scheduling.jobs import Request

__all__ = ["CpuOnly", "GpuOnly", "Paper", "Policy"]


Waits = Sequence[tuple[int, int]]


class Policy(ABC):
    """Chooses the device of each layer of each request."""

    name: str

    def prepare(self, graph: LayerGraph, board: Board) -> None:
        """Requests for `graph` are to come: what takes long can be done now."""

    def admit(self, request: Request, board: Board) -> Waits:
        """A request was accepted; called once, before any of its layers is selected.

        Returns:
            Pairs (before, after) of layers: the second is held until the first is done, though it does
            not read it. Together with the graph's own edges they must leave it free of cycles.
        """
        return ()

    @abstractmethod
    def select(self, request: Request, index: int, places: dict[int, str], board: Board) -> Device:
        """The device for layer `index`, all of whose inputs exist.

        Args:
            request: whose layer it is.
            index: which.
            places: the device of each layer of the request that has run or runs.
            board: the machine at this moment.
        """

    def rank(self, request: Request, index: int, board: Board) -> float:
        """Orders layers of requests that are equally urgent; the larger goes first."""
        return 0.0

    def release(self, request: Request) -> None:
        """The request is done or failed; forget it."""


def transfer_in_s(
    request: Request, index: int, places: dict[int, str], device: Device, board: Board
) -> float:
    """Seconds to bring the inputs of a layer to `device`."""
    return sum(
        board.platform.transfer_s(
            board.platform.home if source == REQUEST else places[source], device.name, size * request.examples
        )
        for source, size in request.graph.edge_bytes(index)
    )


def earliest(
    devices: Sequence[Device], request: Request, index: int, places: dict[int, str], board: Board
) -> Device:
    """Of `devices`, the one on which the layer would finish first."""
    if len(devices) == 1:
        return devices[0]
    layer = request.graph.layers[index]

    def finish_s(device: Device) -> float:
        start_s = board.free_s(device) + transfer_in_s(request, index, places, device, board)
        return start_s + board.costs.seconds(layer, device, request.examples)

    return min(devices, key=finish_s)


def of_kind(platform: Platform, kind: str) -> Sequence[Device]:
    """The devices of a kind, or all where there are none of it."""
    return platform.of_kind(kind) or tuple(platform.devices)


class GpuOnly(Policy):
    """Everything on the GPU; with several, on the one that finishes first."""

    name = "gpu_only"

    def select(self, request: Request, index: int, places: dict[int, str], board: Board) -> Device:
        return earliest(of_kind(board.platform, "gpu"), request, index, places, board)


class CpuOnly(Policy):
    """Everything on the CPU."""

    name = "cpu_only"

    def select(self, request: Request, index: int, places: dict[int, str], board: Board) -> Device:
        return earliest(of_kind(board.platform, "cpu"), request, index, places, board)


class Paper(Policy):
    """Convolutions on the GPU, everything else on the CPU (P4, core selector)."""

    name = "paper"

    def select(self, request: Request, index: int, places: dict[int, str], board: Board) -> Device:
        kind = "gpu" if request.graph.layers[index].work.kind in ("conv", "depthwise") else "cpu"
        return earliest(of_kind(board.platform, kind), request, index, places, board)
