"""Whether a layer that exists in pieces runs in them or whole, decided when its first piece could begin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlap_train.scheduling.graph.requests import Request
from overlap_train.scheduling.policies.board import Board

if TYPE_CHECKING:
    from overlap_train.scheduling.policies.base import Policy

__all__ = ["whole_is_sooner"]


def whole_is_sooner(
    policy: Policy, request: Request, index: int, places: dict[int, str], board: Board
) -> bool:
    """Compares both forms of layer `index`, each part put where the policy would put it.

    What counts is when the request is done by the policy's estimate, plus what the form takes from every
    other request. Equal forms, such as ones of which nothing is known, run whole.
    """
    # What the layer reads beside its pieces may not have been placed yet; then it is taken to be at home.
    known = {port.source: board.platform.home for port in request.graph.layers[index].ports()} | places
    whole_s = _whole_s(policy, request, index, known, board)
    trial, taken = board.copy(), dict(known)
    ready_s, held_up_s = board.now_s, 0.0
    for piece in request.graph.pieces[index]:
        device = policy.select(request, piece, taken, trial)
        seconds = trial.run_s(request, piece, taken, device)
        ready_s = max(ready_s, trial.free_s(device) + seconds)
        held_up_s += trial.held_up_s(device, seconds)
        if ready_s + held_up_s >= whole_s:
            return True
        trial.expect(device, seconds)
        taken[piece] = device.name
    device = policy.select(request, index, taken, board)
    join_s = board.run_s(request, index, taken, device)
    join_s += board.held_up_s(device, join_s) + policy.tail_s(request, index, device, board)
    return ready_s + held_up_s + join_s >= whole_s


def _whole_s(policy: Policy, request: Request, index: int, places: dict[int, str], board: Board) -> float:
    request.whole[index] = True
    try:
        device = policy.select(request, index, places, board)
        seconds = board.run_s(request, index, places, device)
    finally:
        del request.whole[index]
    return (
        board.free_s(device)
        + seconds
        + board.held_up_s(device, seconds)
        + policy.tail_s(request, index, device, board)
    )
