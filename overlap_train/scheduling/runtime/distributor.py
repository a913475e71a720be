"""The layer distributor: it selects a device, formats a job and dispatches it (paper P4, figure 3).

The paper's core selector is the policy, its job formatter `_format`, and its dispatcher `_dispatch`.

It is driven by the layer controllers of all requests and used alike by the threads of `engine.py` and
by the virtual clock of `simulator.py`; whoever owns it calls it under one lock.
"""

from __future__ import annotations

import functools
import operator
from collections import deque
from collections.abc import Iterator
from typing import Any

from overlap_train.scheduling.graph.devices import Device
from overlap_train.scheduling.graph.layers import LayerGraph
from overlap_train.scheduling.graph.requests import Job, Request, urgency
from overlap_train.scheduling.policies.base import Policy, selected
from overlap_train.scheduling.policies.board import Board
from overlap_train.scheduling.policies.planning import Problem, upward_ranks
from overlap_train.scheduling.runtime.controller import LayerController
from overlap_train.scheduling.runtime.job_queue import JobQueue

# Waiting jobs of a device, the most urgent first, that others are offered when they are idle.
_LOOKED_AT = 8

__all__ = ["LayerDistributor"]


class LayerDistributor:
    """Turns released layers into jobs in the queue."""

    def __init__(self, policy: Policy, board: Board, queue: JobQueue, *, aging_s: float = 1.0) -> None:
        self._policy = policy
        self._board = board
        self._aging_s = aging_s
        self._urgency_s: dict[int, float] = {}
        self._controllers: dict[int, LayerController] = {}
        self._queue = queue

    def prepare(self, graph: LayerGraph) -> None:
        """Let the policy plan for `graph` before its first request has to wait for that."""
        self._policy.prepare(graph, self._board)

    def admit(self, controller: LayerController) -> None:
        """A request begins: places its first layers."""
        request, board = controller.request, self._board
        self._controllers[request.number] = controller
        board.active_requests += 1
        remaining_s = 0.0
        if request.deadline_s is not None:
            problem = Problem.of(request.graph, board.platform, board.costs, request.examples, whole=True)
            remaining_s = max(upward_ranks(problem))
        self._urgency_s[request.number] = urgency(request, remaining_s=remaining_s, aging_s=self._aging_s)
        waits = self._policy.admit(request, board)
        self.distribute(controller, controller.start(waits))

    def distribute(self, controller: LayerController, released: list[int]) -> None:
        """Place layers whose inputs exist, or leave out the pieces of a layer that runs whole."""
        waiting = deque(released)
        while waiting:
            index = waiting.popleft()
            if self._left_out(controller, index):
                waiting.extend(controller.skip(index))
                continue
            device = selected(self._policy, controller.request, index, controller.places, self._board)
            self._dispatch(controller, self._format(controller, index, device))

    def _format(self, controller: LayerController, index: int, device: Device) -> Job:
        """Put a layer, its inputs and their size together into a job for `device`."""
        request, board = controller.request, self._board
        layer, home = request.layer(index), board.platform.home
        sizes = request.graph.edge_bytes(layer)
        away = sum(size for source, size in sizes if controller.places.get(source, home) != device.name)
        transfer_s = board.transfer_in_s(request, index, controller.places, device)
        return Job(
            layer=layer,
            inputs=controller.inputs(index),
            size_bytes=int(sum(size for _, size in sizes) * request.examples),
            request=request,
            index=index,
            device=device,
            transfer_bytes=int(away * request.examples),
            transfer_s=transfer_s,
            predicted_s=transfer_s + board.costs.seconds(layer, device, request.examples),
            urgency_s=self._urgency_s[request.number],
            rank=self._policy.rank(request, index, board),
        )

    def _dispatch(self, controller: LayerController, job: Job) -> None:
        controller.place(job.index, job.device.name)
        self._queue.put(job)
        self._board.queued(job)

    def rebalance(self) -> None:
        """Give idle devices what waits for others and would be done sooner on them (work stealing).

        Run times are predicted, and the load of a device changes; a layer that was put behind others need not
        wait for them when that turns out to take longer than it would take elsewhere.
        """
        for device in self._board.platform.devices:
            for _ in range(self._board.idle(device)):
                if not self._take_over(device):
                    break

    def _take_over(self, idle: Device) -> bool:
        """Put one waiting job on an idle device: the most urgent, and of those the one that gains most."""
        for *_, job in sorted(self._gains(idle), key=operator.itemgetter(0, 1)):
            controller = self._controllers[job.request.number]
            moved = self._format(controller, job.index, idle)
            # A worker may have taken it meanwhile: the queue has a lock of its own.
            if self._queue.remove(functools.partial(operator.is_, job)):
                self._board.dropped(job)
                self._dispatch(controller, moved)
                return True
        return False

    def _gains(self, idle: Device) -> Iterator[tuple[float, float, Job]]:
        """Jobs that would be done sooner on `idle`: urgency, seconds lost by it, job."""
        board, policy = self._board, self._policy
        for device in board.platform.devices:
            if device is idle or board.idle(device):
                continue
            ahead_s = board.left_s(device)
            for job in self._queue.waiting(device, _LOOKED_AT):
                there_s = board.now_s + ahead_s / device.slots + job.predicted_s
                ahead_s += job.predicted_s
                if not policy.may_move(job.request):
                    continue
                places = self._controllers[job.request.number].places
                here_s = board.done_s(job.request, job.index, places, idle)
                lost_s = here_s + policy.tail_s(job.request, job.index, idle, board)
                lost_s -= there_s + policy.tail_s(job.request, job.index, device, board)
                if lost_s < 0:
                    yield job.urgency_s, lost_s, job

    def _left_out(self, controller: LayerController, index: int) -> bool:
        request = controller.request
        join = request.graph.joins.get(index)
        if join is None:
            return False
        if join not in request.whole:
            controller.decide(join, self._policy.runs_whole(request, join, controller.places, self._board))
        return request.whole[join]

    def release(self, request: Request) -> None:
        """The request is over, one way or the other."""
        self._board.active_requests -= 1
        self._urgency_s.pop(request.number, None)
        self._controllers.pop(request.number, None)
        self._policy.release(request)

    def complete(self, controller: LayerController, job: Job, outputs: Any) -> bool:
        """A job's layer is done: places what that releases; True if the request is finished."""
        self.distribute(controller, controller.complete(job.index, outputs))
        return controller.finished
