"""The layer distributor: core selector, job formatter and dispatcher (paper P4, figure 3).

It is driven by the layer controllers of all requests and used alike by the threads of `engine.py` and
by the virtual clock of `simulator.py`; whoever owns it calls it under one lock.
"""

from __future__ import annotations

from typing import Any

from overlap_train.scheduling.board import Board
from overlap_train.scheduling.controller import LayerController
from overlap_train.scheduling.devices import Device
from overlap_train.scheduling.jobs import Job, JobQueue, Request, urgency
from overlap_train.scheduling.planning import Problem, upward_ranks
from overlap_train.scheduling.policies import Policy, transfer_in_s

__all__ = ["CoreSelector", "Dispatcher", "JobFormatter", "LayerDistributor"]


class CoreSelector:
    """Asks the policy for the device of a layer."""

    def __init__(self, policy: Policy, board: Board) -> None:
        self.policy = policy
        self._board = board

    def select(self, controller: LayerController, index: int) -> Device:
        return self.policy.select(controller.request, index, controller.places, self._board)


class JobFormatter:
    """Puts a layer, its inputs and their size together into a job."""

    def __init__(self, board: Board) -> None:
        self._board = board

    def format(
        self, controller: LayerController, index: int, device: Device, *, urgency_s: float, rank: float
    ) -> Job:
        request, board = controller.request, self._board
        layer, home = request.graph.layers[index], board.platform.home
        sizes = request.graph.edge_bytes(index)
        away = sum(size for source, size in sizes if controller.places.get(source, home) != device.name)
        transfer_s = transfer_in_s(request, index, controller.places, device, board)
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
            urgency_s=urgency_s,
            rank=rank,
        )


class Dispatcher:
    """Puts jobs into the queue and on the board."""

    def __init__(self, queue: JobQueue, board: Board) -> None:
        self._queue = queue
        self._board = board

    def dispatch(self, job: Job) -> None:
        self._queue.put(job)
        self._board.queued(job)


class LayerDistributor:
    """Turns released layers into jobs in the queue.

    Args:
        policy: where layers go.
        board: the state of the devices.
        queue: where jobs wait.
        aging_s: how many seconds of waiting one unit of priority is worth.
    """

    def __init__(self, policy: Policy, board: Board, queue: JobQueue, *, aging_s: float = 1.0) -> None:
        self.selector = CoreSelector(policy, board)
        self._formatter = JobFormatter(board)
        self._dispatcher = Dispatcher(queue, board)
        self._board = board
        self._aging_s = aging_s
        self._urgency_s: dict[int, float] = {}

    def admit(self, controller: LayerController) -> None:
        """A request begins: places its first layers."""
        request, board = controller.request, self._board
        board.active_requests += 1
        remaining_s = 0.0
        if request.deadline_s is not None:
            remaining_s = max(
                upward_ranks(Problem.of(request.graph, board.platform, board.costs, request.examples))
            )
        self._urgency_s[request.number] = urgency(request, remaining_s=remaining_s, aging_s=self._aging_s)
        waits = self.selector.policy.admit(request, board)
        self.distribute(controller, controller.start(waits))

    def distribute(self, controller: LayerController, released: list[int]) -> None:
        """Places layers whose inputs exist."""
        for index in released:
            device = self.selector.select(controller, index)
            controller.place(index, device.name)
            urgency_s = self._urgency_s[controller.request.number]
            rank = self.selector.policy.rank(controller.request, index, self._board)
            job = self._formatter.format(controller, index, device, urgency_s=urgency_s, rank=rank)
            self._dispatcher.dispatch(job)

    def release(self, request: Request) -> None:
        """The request is over, one way or the other."""
        self._board.active_requests -= 1
        self._urgency_s.pop(request.number, None)
        self.selector.policy.release(request)

    def complete(self, controller: LayerController, job: Job, outputs: Any) -> bool:
        """A job's layer is done: places what that releases; True if the request is finished."""
        self.distribute(controller, controller.complete(job.index, outputs))
        return controller.finished
