"""Several networks in service, on simulated threads: each request ends once, with its own result.

Real are the service, the engine with its workers, the distributor, the queue and the costs. The layers are
arithmetic. Clients submit, wait, take models out and in again, and close, in an order that a seed decides;
layers and callbacks fail.
"""

from __future__ import annotations

import contextlib
import logging
import random
from collections import Counter
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np

from overlap_train.errors import DeadlineError, QueueFullError, SchedulerClosedError, SchedulingError
from overlap_train.scheduling.engine import Engine
from overlap_train.scheduling.graph import Device, Job, Layer, LayerGraph, Platform, Port, Work
from overlap_train.scheduling.service import Model, Service, Submission
from tests.simulation import scheduler as simulated
from tests.simulation.run import Report, digest

_TIMES_S = (0.0, 0.0, 0.01, 0.1)
_ACTIONS = ("submit",) * 12 + ("sleep", "sleep", "remove", "drain", "close")


@dataclass(frozen=True)
class Scenario:
    """What is served, what the clients do, and how often a layer fails."""

    slots: tuple[int, ...]  # of each device
    layers: tuple[int, ...]  # of each model
    max_pending: int
    max_batch: int
    max_active: int | None
    failing: float
    clients: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, seed: Any) -> Scenario:
        """Return the scenario of a seed."""
        rng = random.Random(f"serving {seed}")
        clients = [tuple(rng.choices(_ACTIONS, k=rng.randint(1, 8))) for _ in range(rng.randint(1, 3))]
        return cls(
            slots=tuple(rng.randint(1, 2) for _ in range(rng.randint(1, 2))),
            layers=tuple(rng.randint(1, 3) for _ in range(rng.randint(1, 2))),
            max_pending=rng.randint(1, 3),
            max_batch=rng.randint(1, 3),
            max_active=rng.choice((None, 1)),
            failing=rng.choice((0.0, 0.0, 0.2)),
            clients=tuple(clients),
        )


class Failed(Exception):
    """What a layer or a callback raises."""


class _Value:
    """What a layer makes."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def numpy(self) -> Any:
        return self.array


class _Scene:
    """A service, and what has come of each request."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario, self.random = scenario, simulated.running().random
        devices = tuple(Device(f"device-{i}", slots=slots) for i, slots in enumerate(scenario.slots))
        self.engine = Engine(Platform(devices), backend=self._compute)
        self.service = Service(
            self.engine, lambda arrays: tuple(map(_Value, arrays)), max_active=scenario.max_active
        )
        self.models = [self._add(number) for number in range(len(scenario.layers))]
        self.running: Counter[tuple[str, int]] = Counter()
        self.ended: Counter[int] = Counter()
        self.accepted: dict[int, tuple[Submission, Any]] = {}
        self.numbers = 0

    def _add(self, number: int) -> Model:
        count = self.scenario.layers[number]
        layers = [Layer(f"{i}", Work("conv"), (Port(i - 1),), (1,)) for i in range(count)]
        graph = LayerGraph(layers, [Port(count - 1)], name=f"model-{number}")
        options = {"max_pending": self.scenario.max_pending, "max_batch": self.scenario.max_batch}
        model = Model(graph.name, graph, tuple, lambda outputs: outputs[0], **options)
        self.service.add(model)
        return model

    def _compute(self, job: Job) -> Any:
        place = (job.device.name, job.device.slots)
        self.running[place] += 1
        assert self.running[place] <= job.device.slots, "more layers run than a device has slots"
        try:
            simulated.sleep(self.random.choice(_TIMES_S))
            if self.random.random() < self.scenario.failing:
                raise Failed
            return [_Value(_layer(job.inputs[0].array))]
        finally:
            self.running[place] -= 1

    def act(self, actions: tuple[str, ...]) -> None:
        """Do what a client does; a service that is closed ends that."""
        with contextlib.suppress(SchedulerClosedError):
            for action in actions:
                getattr(self, f"_{action}")()

    def _submit(self) -> None:
        self.numbers += 1
        number, name = self.numbers, f"model-{self.random.randrange(len(self.models))}"
        try:
            model = self.service.model(name)
        except KeyError:
            return  # it has been taken out
        x, now_s = np.full((self.random.randint(1, 2), 1), number), simulated.time.monotonic()
        options: dict[str, Any] = {"priority": self.random.randint(-1, 1)}
        if self.random.random() < 0.5:
            options["deadline_s"] = now_s + self.random.choice((0.0, 0.05, 0.5))
            options["on_late"] = self.random.choice(("run", "drop", "reject"))
        submission = Submission(model, (x,), len(x), Future(), now_s, **options)
        submission.future.add_done_callback(lambda _: self._end(number))
        try:
            self.service.submit(submission, self.random.choice((0.0, 0.05, None)))
        except (QueueFullError, DeadlineError):
            assert not submission.future.done(), "what is not accepted has ended"
            return
        expected = x
        for _ in model.graph.layers:
            expected = _layer(expected)
        self.accepted[number] = (submission, expected)

    def _end(self, number: int) -> None:
        self.ended[number] += 1
        what = self.random.choice(("", "", "", "raise", "drain", "submit"))
        if what == "raise":
            raise Failed
        with contextlib.suppress(SchedulingError):  # a worker may not wait
            if what:
                self.act((what,))

    def _sleep(self) -> None:
        simulated.sleep(self.random.choice(_TIMES_S))

    def _drain(self) -> None:
        before = list(self.accepted.values())
        self.service.drain()
        left = [submission for submission, _ in before if not submission.future.done()]
        assert not left, "it is drained, and requests have not ended"

    def _close(self) -> None:
        self.service.close()

    def _remove(self) -> None:
        number = self.random.randrange(len(self.models))
        with contextlib.suppress(KeyError, ValueError):  # another client does the same
            model = self.service.model(f"model-{number}")
            before = [submission for submission, _ in self.accepted.values() if submission.model is model]
            self.service.remove(model)
            left = [submission for submission in before if not submission.future.done()]
            assert not left, "a model has been taken out, and requests for it have not ended"
            self.models[number] = self._add(number)

    def check(self) -> None:
        """Raise an AssertionError unless each request has ended as it may."""
        statistics = self.service.statistics()
        assert (statistics.waiting, statistics.active) == (0, 0), "requests are left"
        for number, (submission, expected) in self.accepted.items():
            future = submission.future
            assert future.done(), f"request {number} has not ended"
            assert self.ended[number] == 1, f"request {number} has ended {self.ended[number]} times"
            error = future.exception(0)
            if error is None:
                assert np.array_equal(future.result(0), expected), f"request {number} has another's result"
            else:
                assert isinstance(error, (Failed, SchedulerClosedError, DeadlineError)), repr(error)
                assert not isinstance(error, DeadlineError) or submission.on_late == "drop"
        for model in self.models:
            counts = model.account.counts
            ends = counts["completed"] + counts["failed"] + counts["dropped"]
            assert counts["submitted"] == ends, f"{counts['submitted']} submitted, {ends} ended"


def _layer(array: Any) -> Any:
    return array * 3 + 1


def run(seed: Any) -> Report:
    """Run a seed's scenario; whatever is wrong is in the report's error."""
    logging.disable()  # what callbacks raise is logged
    scenario = Scenario.of(seed)
    scheduler = simulated.Scheduler(f"serving {seed}")
    report = Report(seed, scenario, "", 0)

    def serve() -> None:
        scene = _Scene(scenario)
        clients = [
            simulated.Thread(target=scene.act, name=f"client-{i}", args=(actions,))
            for i, actions in enumerate(scenario.clients)
        ]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        if scene.random.random() < 0.5:
            with contextlib.suppress(SchedulerClosedError):
                scene.service.drain()
        if not scene.service.closed:
            assert all(worker.is_alive() for worker in scene.engine._workers), "a worker has ended"
        scene.service.close()
        scene.check()

    try:
        scheduler.run(serve)
    except (Exception, simulated.Abandoned) as error:
        report.error = error
    report.digest, report.switches = digest([scheduler]), scheduler.switches
    return report
