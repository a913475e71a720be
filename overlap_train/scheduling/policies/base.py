"""What a policy is, and what it decides unless it says otherwise.

A policy's methods are called under the engine's lock; one policy object serves one engine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from overlap_train._support.arguments import shown
from overlap_train.errors import SchedulingError
from overlap_train.scheduling.graph.devices import Device, Platform
from overlap_train.scheduling.graph.layers import LayerGraph
from overlap_train.scheduling.graph.requests import Request
from overlap_train.scheduling.policies.board import Board

__all__ = ["Policy", "Waits", "earliest", "of_kind", "selected"]


Waits = Sequence[tuple[int, int]]


class Policy(ABC):
    """Choose the device of each layer of each request; the base class of all policies."""

    name: str

    def prepare(self, graph: LayerGraph, board: Board) -> None:
        """Prepare for requests for `graph`: do now what takes long."""

    def admit(self, request: Request, board: Board) -> Waits:
        """Take in a request that was accepted. Called once, before any of its layers is selected.

        Returns:
            Pairs (before, after) of layers: the second is held until the first is done, though it does
            not read it. Together with the graph's own edges they must leave it free of cycles.
        """
        return ()

    @abstractmethod
    def select(self, request: Request, index: int, places: dict[int, str], board: Board) -> Device:
        """Return the device for layer `index`, all of whose inputs exist.

        Args:
            request: whose layer it is.
            index: which.
            places: the device of each layer of the request that has run or runs.
            board: the machine at this moment.
        """

    def runs_whole(self, request: Request, index: int, places: dict[int, str], board: Board) -> bool:
        """Return whether layer `index` runs whole, now that the first of its pieces could begin.

        The default: if by the policy's own estimate the request would then be done no later.
        """
        return _whole_is_sooner(self, request, index, places, board)

    def tail_s(self, request: Request, index: int, device: Device, board: Board) -> float:
        """Return the seconds from a layer's end on `device` to the request's end; 0 without looking ahead."""
        return 0.0

    def may_move(self, request: Request) -> bool:
        """Return whether waiting layers of a request may move to another device that has become idle."""
        return False

    def rank(self, request: Request, index: int, board: Board) -> float:
        """Return the rank of a layer among those of equally urgent requests; the larger goes first."""
        return 0.0

    def release(self, request: Request) -> None:
        """Forget a request that is done or has failed."""


def selected(policy: Policy, request: Request, index: int, places: dict[int, str], board: Board) -> Device:
    """What a policy selects, which may be one of the user's."""
    device = policy.select(request, index, places, board)
    if not isinstance(device, Device) or device not in board.platform.devices:
        raise SchedulingError(
            f"{type(policy).__name__}.select must return one of the platform's devices, "
            f"board.platform.devices; got {shown(device)}"
        )
    return device


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


def _whole_is_sooner(
    policy: Policy, request: Request, index: int, places: dict[int, str], board: Board
) -> bool:
    """Compare both forms of layer `index`, each part put where the policy would put it.

    What counts is when the request is done by the policy's estimate, plus what the form takes from every
    other request. Equal forms, such as ones of which nothing is known, run whole.
    """
    # What the layer reads beside its pieces may not have been placed yet; then it is taken to be at home.
    known = {port.source: board.platform.home for port in request.graph.layers[index].ports()} | places
    whole_s = _whole_s(policy, request, index, known, board)
    trial, taken = board.copy(), dict(known)
    ready_s, held_up_s = board.now_s, 0.0
    for piece in request.graph.pieces[index]:
        device = selected(policy, request, piece, taken, trial)
        seconds = trial.run_s(request, piece, taken, device)
        ready_s = max(ready_s, trial.free_s(device) + seconds)
        held_up_s += trial.held_up_s(device, seconds)
        if ready_s + held_up_s >= whole_s:
            return True
        trial.expect(device, seconds)
        taken[piece] = device.name
    device = selected(policy, request, index, taken, board)
    join_s = board.run_s(request, index, taken, device)
    join_s += board.held_up_s(device, join_s) + policy.tail_s(request, index, device, board)
    return ready_s + held_up_s + join_s >= whole_s


def _whole_s(policy: Policy, request: Request, index: int, places: dict[int, str], board: Board) -> float:
    request.whole[index] = True
    try:
        device = selected(policy, request, index, places, board)
        seconds = board.run_s(request, index, places, device)
    finally:
        del request.whole[index]
    return (
        board.free_s(device)
        + seconds
        + board.held_up_s(device, seconds)
        + policy.tail_s(request, index, device, board)
    )
