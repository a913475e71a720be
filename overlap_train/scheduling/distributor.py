"""A request's way to the workers: controller, distributor and job queue (paper P4, figure 3).

The threads of `engine.py` and the virtual clock of `simulation.py` drive them alike, under one lock; only the
queue has a lock of its own.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import operator
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from overlap_train.errors import SchedulerClosedError, SchedulingError
from overlap_train.scheduling.graph import REQUEST, Device, Job, Port, Request, urgency
from overlap_train.scheduling.policy import Board, Policy, selected

_Entry = tuple[float, float, int, Job]
"""Urgency, the rank's negative, the order in which it came, and the job."""


class JobQueue:
    """One queue for all devices: a worker takes the most urgent job for its device. For any thread."""

    def __init__(self, devices: Sequence[Device]) -> None:
        self._lock = threading.Lock()
        self._ready = {device.name: threading.Condition(self._lock) for device in devices}
        self._heaps: dict[str, list[_Entry]] = {device.name: [] for device in devices}
        self._order = itertools.count()
        self._closed = False

    def put(self, job: Job) -> None:
        """Add a job and wake one worker of its device."""
        name = job.device.name
        with self._lock:
            if self._closed:
                raise SchedulerClosedError("the job queue is closed")
            heapq.heappush(self._heaps[name], (job.urgency_s, -job.rank, next(self._order), job))
            self._ready[name].notify()

    def take(self, device: Device) -> Job | None:
        """The most urgent job for `device`; waits for one. None once the queue is closed."""
        with self._lock:
            heap = self._heaps[device.name]
            while not heap and not self._closed:
                self._ready[device.name].wait()
            return heapq.heappop(heap)[-1] if heap and not self._closed else None

    def take_now(self, device: Device) -> Job | None:
        """As `take`, but None at once when there is nothing for `device`."""
        with self._lock:
            heap = self._heaps[device.name]
            return heapq.heappop(heap)[-1] if heap else None

    def waiting(self, device: Device, count: int) -> list[Job]:
        """The first `count` jobs that wait for `device`, the most urgent first."""
        with self._lock:
            return [entry[-1] for entry in heapq.nsmallest(count, self._heaps[device.name])]

    def remove(self, unwanted: Callable[[Job], bool]) -> list[Job]:
        """Take out all waiting jobs for which `unwanted` is true, and return them."""
        removed: list[Job] = []
        with self._lock:
            for heap in self._heaps.values():
                removed += [entry[-1] for entry in heap if unwanted(entry[-1])]
                heap[:] = [entry for entry in heap if not unwanted(entry[-1])]
                heapq.heapify(heap)
        return removed

    def close(self) -> None:
        """Drop the jobs that no worker took, and let every worker go. May be called again."""
        with self._lock:
            self._closed = True
            for name, heap in self._heaps.items():
                heap.clear()
                self._ready[name].notify_all()


class LayerController:
    """Follows one request through its network and keeps each tensor until its last reader is done."""

    def __init__(self, request: Request) -> None:
        self.request = request
        graph = request.graph
        self._graph = graph
        self._missing = [len(before) for before in graph.predecessors]
        self._left = len(graph)
        self._tensors: dict[Port, Any] = {Port(REQUEST, i): x for i, x in enumerate(request.inputs)}
        self._readers: dict[Port, int] = {}
        for port in [*(p for layer in graph.layers for p in set(layer.inputs)), *graph.outputs]:
            self._readers[port] = self._readers.get(port, 0) + 1
        self.places: dict[int, str] = {}  # where each layer runs, and leaves its outputs

    def first(self) -> list[int]:
        """Return the layers that wait for nothing."""
        return [index for index, missing in enumerate(self._missing) if missing == 0]

    @property
    def finished(self) -> bool:
        """Whether all layers are done."""
        return self._left == 0

    def inputs(self, index: int) -> tuple[Any, ...]:
        """Return the tensors that layer `index` reads, in order; None for each where nothing is computed."""
        return tuple(self._tensors.get(port) for port in self._graph.layers[index].inputs)

    def complete(self, index: int, outputs: Sequence[Any] | None = None) -> list[int]:
        """Store a layer's outputs, drop what no layer reads any more, return the layers released."""
        layer = self._graph.layers[index]
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
        self._left -= 1
        for after in self._graph.successors[index]:
            self._missing[after] -= 1
        return [after for after in self._graph.successors[index] if self._missing[after] == 0]

    def outputs(self) -> tuple[Any, ...]:
        """The request's results; call it once it is `finished`."""
        return tuple(self._tensors.get(port) for port in self._graph.outputs)


# So many of a device's waiting jobs, the most urgent first, are offered to devices that are idle.
_MOST_OFFERS = 8


class LayerDistributor:
    """Turns released layers into jobs in the queue."""

    def __init__(self, policy: Policy, board: Board, queue: JobQueue) -> None:
        self._policy = policy
        self._board = board
        self._urgency_s: dict[int, float] = {}
        self.controllers: dict[int, LayerController] = {}  # by the number of the request
        self._queue = queue

    def admit(self, request: Request) -> None:
        """Begin a request by placing its first layers, in pieces if there are idle cores."""
        board = self._board
        request.graph = board.form(request.graph)
        controller = self.controllers[request.number] = LayerController(request)
        board.active_requests += 1
        is_timed = request.deadline_s is not None
        remaining_s = board.least_s(request.graph, request.examples) if is_timed else 0.0
        self._urgency_s[request.number] = urgency(request, remaining_s=remaining_s)
        self.distribute(controller, controller.first())

    def distribute(self, controller: LayerController, released: list[int]) -> None:
        """Place layers whose inputs exist."""
        for index in released:
            device = selected(self._policy, controller.request, index, controller.places, self._board)
            self._dispatch(controller, self._format(controller, index, device))

    def _format(self, controller: LayerController, index: int, device: Device) -> Job:
        """Put a layer, its inputs and their size together into a job for `device`."""
        request, board = controller.request, self._board
        layer, home = request.graph.layers[index], board.platform.home
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
        controller.places[job.index] = job.device.name
        self._queue.put(job)
        self._board.expect(job.device, job.predicted_s)

    def rebalance(self) -> None:
        """Give idle devices what waits for others and would be done sooner on them (work stealing)."""
        for device in self._board.platform.devices if self._policy.moves else ():
            for _ in range(self._board.idle(device)):
                if not self._take_over(device):
                    break

    def _take_over(self, idle: Device) -> bool:
        """Put one waiting job on an idle device: the most urgent, and of those the one that gains most."""
        for *_, job in sorted(self._gains(idle), key=operator.itemgetter(0, 1)):
            controller = self.controllers[job.request.number]
            new_job = self._format(controller, job.index, idle)
            # A worker may have taken it meanwhile: the queue has a lock of its own.
            if self._queue.remove(functools.partial(operator.is_, job)):
                self._board.dropped(job)
                self._dispatch(controller, new_job)
                return True
        return False

    def _gains(self, idle: Device) -> Iterator[tuple[float, float, Job]]:
        """Jobs that would be done sooner on `idle`: urgency, seconds lost by it, job."""
        board, policy = self._board, self._policy
        for device in board.platform.devices:
            if device is idle or board.idle(device):
                continue
            ahead_s = sum(board.left_s(device))
            for job in self._queue.waiting(device, _MOST_OFFERS):
                there_s = board.now_s + ahead_s / device.slots + job.predicted_s
                ahead_s += job.predicted_s
                places = self.controllers[job.request.number].places
                here_s = board.done_s(job.request, job.index, places, idle)
                lost_s = here_s + policy.tail_s(job.request, job.index, idle, board)
                lost_s -= there_s + policy.tail_s(job.request, job.index, device, board)
                if lost_s < 0:
                    yield job.urgency_s, lost_s, job

    def release(self, request: Request) -> None:
        """Forget a request that is done, has failed or was abandoned."""
        self._board.active_requests -= 1
        self._urgency_s.pop(request.number, None)
        self.controllers.pop(request.number, None)

    def complete(self, controller: LayerController, job: Job, outputs: Any) -> bool:
        """Place the layers that a job's end releases; return whether the request is finished."""
        self.distribute(controller, controller.complete(job.index, outputs))
        return controller.finished
