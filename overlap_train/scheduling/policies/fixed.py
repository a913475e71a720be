"""Policies that look at one layer at a time and at nothing but its kind."""

from __future__ import annotations

from overlap_train.scheduling.graph.devices import Device
from overlap_train.scheduling.graph.requests import Request
from overlap_train.scheduling.policies.base import Policy, earliest, of_kind
from overlap_train.scheduling.policies.board import Board

__all__ = ["CpuOnly", "GpuOnly", "Paper"]


class GpuOnly(Policy):
    """Everything on the GPU; with several, on the one that finishes first."""

    name = "gpu_only"

    def select(self, request: Request, index: int, places: dict[int, str], board: Board) -> Device:
        """Return the device on which a layer is to run."""
        return earliest(of_kind(board.platform, "gpu"), request, index, places, board)


class CpuOnly(Policy):
    """Everything on the CPU."""

    name = "cpu_only"

    def select(self, request: Request, index: int, places: dict[int, str], board: Board) -> Device:
        """Return the device on which a layer is to run."""
        return earliest(of_kind(board.platform, "cpu"), request, index, places, board)


class Paper(Policy):
    """Convolutions on the GPU, everything else on the CPU (P4, core selector)."""

    name = "paper"

    def select(self, request: Request, index: int, places: dict[int, str], board: Board) -> Device:
        """Return the device on which a layer is to run."""
        kind = "gpu" if request.layer(index).work.kind in ("conv", "depthwise") else "cpu"
        return earliest(of_kind(board.platform, kind), request, index, places, board)
