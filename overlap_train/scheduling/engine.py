"""The scheduler on real threads: one layer worker for each slot of each device.

One lock owns the controllers, the distributor with its board, and the accounts. Workers hold it only
between layers; layers run, and callbacks are called, without it. Lock order: engine, then queue, then
cost model.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from overlap_train._support.arguments import short_repr
from overlap_train._support.closing import Closing
from overlap_train._support.threads import leaves_nothing
from overlap_train.errors import SchedulerClosedError
from overlap_train.records import Span
from overlap_train.scheduling.accounts import DeviceAccount
from overlap_train.scheduling.costs import CostModel, Costs
from overlap_train.scheduling.distributor import JobQueue, LayerDistributor
from overlap_train.scheduling.graph import Device, Job, Platform, Request, RunningLayers
from overlap_train.scheduling.policy import Board, Policy, make_policy

_log = logging.getLogger(__name__)


class Recorder(Protocol):
    """Takes spans for a timeline, such as the project's recorder; called from every worker."""

    def add(self, span: Span) -> None:
        """Keep a span."""


def call_layer(job: Job) -> Any:
    """The default backend: calls what the layer's `runs` has for the job's device, or for its kind."""
    runs = job.layer.runs
    return (runs.get(job.device.name) or runs[job.device.kind])(job.inputs)


@leaves_nothing
def work(queue: JobQueue, device: Device, run: Callable[[Job], None]) -> None:
    """Take the most urgent job for a device from the queue and run it, until the queue is closed."""
    while job := queue.take(device):
        run(job)
        del job


class Engine(Closing):
    """Run requests, layer by layer, on the devices of a platform, with a thread for each slot.

    Any thread may call any method. `backend` runs one job and returns the layer's outputs once they are
    computed; `recorder` gets a span for each job.
    """

    def __init__(
        self,
        platform: Platform,
        policy: str | Policy = "earliest_finish",
        *,
        costs: Costs | None = None,
        backend: Callable[[Job], Any] = call_layer,
        recorder: Recorder | None = None,
    ) -> None:
        if recorder is not None and not callable(getattr(recorder, "add", None)):
            raise TypeError(f"recorder must have a method add(span), or be None; got {short_repr(recorder)}")
        self.platform = platform
        self.costs: Costs = costs if costs is not None else CostModel()
        self._backend = backend
        self._recorder = recorder
        self._lock = threading.Lock()
        self._queue = JobQueue(tuple(platform.devices))
        self._board = Board(platform, self.costs)
        self._policy = make_policy(policy)
        self._distributor = LayerDistributor(self._policy, self._board, self._queue)
        self._accounts = {device.name: DeviceAccount() for device in platform.devices}
        self._running = RunningLayers()
        self._closed = False
        self._workers = [
            threading.Thread(
                target=work,
                args=(self._queue, device, self._run),
                name=f"layer-worker-{device.name}-{slot}",
                daemon=True,
            )
            for device in platform.devices
            for slot in range(device.slots)
        ]
        self._start_workers()

    def _start_workers(self) -> None:
        """Start all workers, or none."""
        for number, worker in enumerate(self._workers):
            try:
                worker.start()
            except BaseException:
                self._workers = self._workers[:number]
                self.close()
                raise

    def start(self, request: Request) -> None:
        """Start the first layers of a request; `request.on_done` is called when it ends."""
        began_s = time.perf_counter()
        with self._lock:
            if self._closed:
                raise SchedulerClosedError("the scheduler is closed; no request can be started")
            self._board.now_s = time.monotonic()
            try:
                self._distributor.admit(request)
            except BaseException:
                self._forget(request)
                raise
            self._accounts[self.platform.home].overhead_s += time.perf_counter() - began_s

    def statistics(self) -> dict[str, DeviceAccount]:
        """Return a copy of the accounts of each device, by name."""
        with self._lock:
            return {name: replace(account) for name, account in self._accounts.items()}

    def close(self) -> None:
        """End what is unfinished with SchedulerClosedError and join the workers; on a worker, join none."""
        with self._lock:
            self._closed = True
            requests = [controller.request for controller in self._distributor.controllers.values()]
            for request in requests:
                self._forget(request)
        for request in requests:
            _notify(request, None, SchedulerClosedError("the scheduler was closed"))
        self._queue.close()
        if threading.current_thread() not in self._workers:
            for worker in self._workers:
                worker.join()

    def _forget(self, request: Request) -> None:
        """Remove a request and its waiting jobs; the lock is held."""
        if request.number not in self._distributor.controllers:
            return
        for job in self._queue.remove(lambda job: job.request is request):
            self._board.dropped(job)
        self._distributor.release(request)

    def _run(self, job: Job) -> None:
        entered_s = time.perf_counter()
        with self._lock:
            self._board.now_s = time.monotonic()
            self._board.started(job)
            is_active = job.request.number in self._distributor.controllers
            job.request.began[job.index] = self._board.now_s, self._others_s(job, self._board.now_s, 1)
        outputs, error, start_s = None, None, time.monotonic()
        if is_active:
            try:
                outputs = self._backend(job)
            except BaseException as raised:
                error = raised
        end_s = time.monotonic()
        left_s = time.perf_counter()
        end = self._finish(job, outputs, error, start_s, end_s, is_active)
        account = self._accounts[job.device.name]
        with self._lock:
            self._rebalance()
            account.overhead_s += (time.perf_counter() - left_s) + (left_s - entered_s) - (end_s - start_s)
        if end is not None:
            _notify(job.request, *end)
        if is_active and self._recorder is not None:
            try:
                self._recorder.add(_span(job, start_s, end_s))
            except Exception:
                _log.exception("the recorder of the scheduler's timeline failed")

    def _others_s(self, job: Job, now_s: float, by: int) -> float:
        """Count a layer that begins or ends; return the seconds that other requests' layers have run."""
        return self._running.change(now_s, by) - job.request.running.change(now_s, by)

    def _rebalance(self) -> None:
        """Move waiting jobs to idle devices, or leave them where they are; the lock is held."""
        if self._closed:
            return
        try:
            self._distributor.rebalance()
        except Exception:
            _log.exception("waiting jobs stay where they are")

    def _finish(
        self, job: Job, outputs: Any, error: BaseException | None, start_s: float, end_s: float, ran: bool
    ) -> tuple[Any, BaseException | None] | None:
        """Book a job; return the outputs and the error of its request, or None if that goes on."""
        request = job.request
        with self._lock:
            self._board.now_s = end_s
            self._board.ended(job)
            _, others_s = request.began.pop(job.index)
            request.beside_s += self._others_s(job, end_s, -1) - others_s
            if ran:
                request.ran_s += end_s - start_s
                self._accounts[job.device.name].book(job, end_s - start_s)
            controller = self._distributor.controllers.get(request.number)
            if controller is None:
                return None
            if error is None:
                try:
                    own_s = end_s - start_s - job.transfer_s
                    self.costs.observe(job.layer, job.device, own_s, request.examples)
                    if not self._distributor.complete(controller, job, outputs):
                        return None
                except BaseException as raised:
                    error = raised
            self._forget(request)
            return (controller.outputs() if error is None else None), error


def _notify(request: Request, outputs: Any, error: BaseException | None) -> None:
    if request.on_done is not None:
        try:
            request.on_done(request, outputs, error)
        except BaseException:
            # A worker must outlive its users' callbacks, whatever they raise.
            _log.exception("on_done of request %d failed", request.number)


def _span(job: Job, start_s: float, end_s: float) -> Span:
    return Span(
        name=f"{job.request.graph.name}/{job.layer.name}",
        thread=threading.current_thread().name,
        start_s=start_s,
        end_s=end_s,
        details={
            "device": job.device.name,
            "request": job.request.number,
            "size_bytes": job.size_bytes,
            "transfer_bytes": job.transfer_bytes,
            "predicted_s": job.predicted_s,
        },
    )
