"""Where a layer goes: the policies that look at one layer at a time.

`heft` and `oracle`, which plan whole requests, are in `planned_policies.py`. A policy's methods are called
under the engine's lock; one policy object serves one engine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from overlap_train.scheduling.graph.devices import Device, Platform
from overlap_train.scheduling.graph.layers import LayerGraph
from overlap_train.scheduling.graph.requests import Request
from overlap_train.scheduling.policies.board import Board
from overlap_train.scheduling.policies.molding import whole_is_sooner

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

    def runs_whole(self, request: Request, index: int, places: dict[int, str], board: Board) -> bool:
        """Whether layer `index` runs in one piece, now that the first of its pieces could begin.

        Unless overridden: if the request would be done no later so, see `whole_is_sooner`.
        """
        return whole_is_sooner(self, request, index, places, board)

    def tail_s(self, request: Request, index: int, device: Device, board: Board) -> float:
        """Seconds from the end of a layer on `device` to that of the request; 0 where nobody looks ahead."""
        return 0.0

    def may_move(self, request: Request) -> bool:
        """Whether waiting layers of a request may be given to another device that has become idle."""
        return False

    def rank(self, request: Request, index: int, board: Board) -> float:
        """Orders layers of requests that are equally urgent; the larger goes first."""
        return 0.0

    def release(self, request: Request) -> None:
        """The request is done or failed; forget it."""


def earliest(
    devices: Sequence[Device], request: Request, index: int, places: dict[int, str], board: Board
) -> Device:
    """Of `devices`, the one on which the layer would finish first."""
    if len(devices) == 1:
        return devices[0]
    return min(devices, key=lambda device: board.done_s(request, index, places, device))


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
        kind = "gpu" if request.layer(index).work.kind in ("conv", "depthwise") else "cpu"
        return earliest(of_kind(board.platform, kind), request, index, places, board)
