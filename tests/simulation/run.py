"""Runs the scenario of a seed under its schedule, and checks what came of it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

from tests.simulation import scheduler as simulated
from tests.simulation.scenario import Course, Keras, Scenario, evaluated
from tests.simulation.world import Broken, Disk, EndedBySystem, World, forget_process, signalled


@dataclass
class Report:
    """What a schedule has done."""

    seed: Any
    scenario: Any
    digest: str  # of the order in which the threads ran
    switches: int
    error: BaseException | None = None


def run(seed: Any) -> Report:
    """Run a seed's scenario; whatever is wrong is in the report's error."""
    scenario, runs = Scenario.of(seed), []
    report = Report(seed, scenario, "", 0)
    try:
        _run(seed, scenario, runs)
    except (Exception, simulated.Killed, EndedBySystem, simulated.Abandoned) as error:
        report.error = error
    report.digest, report.switches = digest(runs), sum(each.switches for each in runs)
    return report


def digest(runs: list[simulated.Scheduler]) -> str:
    """Return a short name for the order in which threads ran."""
    order = [name for each in runs for name in each.order]
    return hashlib.sha256(repr(order).encode()).hexdigest()[:16]


def _run(seed: Any, scenario: Scenario, runs: list[simulated.Scheduler]) -> None:
    failing = scenario.failure[1] if scenario.failure and scenario.failure[0] == "write" else None
    disk = Disk(failing)
    course, weights = _process(f"{seed}", scenario, disk, runs)
    expected = Keras(scenario).run()
    if course is not None:
        check(scenario, course, expected, weights)
    ended = course.ended if course is not None else "killed"
    if course is not None and course.error == "KeyboardInterrupt":
        ended = "interrupted at once"
    if scenario.checkpoints is not None and ended.startswith(("killed", "interrupted")):
        disk.is_locked = disk.is_writing = False  # the system has taken the lock from the dead process
        unbroken = replace(scenario, signals=(), kill_at=None, stuck=None)
        course, weights = _process(f"{seed} resumed", unbroken, disk, runs)
        check(unbroken, course, Keras(unbroken).run(), weights)


def _process(
    seed: str, scenario: Scenario, disk: Disk, runs: list[simulated.Scheduler]
) -> tuple[Course | None, dict[int, int]]:
    """Run a fit in a process of its own; return its course, None if it was killed, and the weights."""
    kill_at = float("inf") if scenario.kill_at is None else scenario.kill_at
    scheduler = simulated.Scheduler(seed, signals=scenario.signals, kill_at=kill_at)
    scheduler.on_signal = signalled
    if scenario.failure is not None and scenario.failure[0] == "thread":
        scheduler.most_threads = scenario.failure[1]
    runs.append(scheduler)
    forget_process()
    worlds = []

    def fit() -> Course:
        world = World(scenario, disk)
        worlds.append(world)
        course = world.run()
        others = [task.thread for task in scheduler.tasks if task is not scheduler.main]
        left = [t.name for t in others if t.is_alive() and t.name.startswith(("validation", "signals"))]
        is_late = scenario.stuck is not None or course.error == "KeyboardInterrupt"
        assert is_late or not left, f"{left} outlive the fit"
        assert not (disk.has_failed and course.error is None), "it is not said that a write failed"
        return course

    try:
        course = scheduler.run(fit)
    except simulated.Killed:
        return None, {}
    except EndedBySystem:
        assert len(scenario.signals) > 1 or scenario.stuck is not None, "one signal has ended the process"
        return None, {}
    finally:
        if Broken.error is not None:
            raise Broken.error
    (world,) = worlds
    if course.error is None and course.ended in ("completed", "stopped"):
        assert not world.snapshots, f"{len(world.snapshots)} snapshots outlive the fit"
    return course, world.weights


def check(scenario: Scenario, course: Course, expected: Course, weights: dict[int, int]) -> None:
    """Raise an AssertionError unless a fit has done what it may do."""
    ends = [event[1] for event in course.events if event[0] == "end"]
    assert ends == list(range(len(ends))), f"the epochs are delivered in the order {ends}"
    kind = scenario.failure[0] if scenario.failure is not None else None
    if scenario.signals:
        assert course.error in (None, "KeyboardInterrupt"), course.error
        insists = scenario.stuck is not None and "every_steps" in scenario.policy
        assert course.error is None or len(scenario.signals) > 1 or insists, "one signal has raised"
    if kind in ("thread", "write") and course.error is not None:
        assert kind in course.error, course.error
    elif scenario.stuck is not None and course.error is not None:
        assert "did not end within" in course.error or course.error == "KeyboardInterrupt", course.error
    elif kind is None and not scenario.signals:
        assert course.error is None, course.error
    if not scenario.is_as_keras:
        _check_own_snapshots(scenario, course, weights)
        return
    is_cut = course.ended.startswith("interrupted") or course.error not in (None, expected.error)
    is_loose = kind == "evaluation" and "every_steps" in scenario.policy
    if is_loose:  # the training goes on until a result inside an epoch is collected
        assert is_cut or course.error == expected.error, "nobody hears of a validation that failed"
        expected = Keras(replace(scenario, failure=None)).run()
    if is_cut or is_loose:
        events = [event for event in course.events if event != ("train end",)]
        assert events == expected.events[: len(events)], differing(events, expected.events)
        assert course.inside == expected.inside[: len(course.inside)]
        return
    assert course.events == expected.events, differing(course.events, expected.events)
    assert (course.error, course.ended) == (expected.error, expected.ended)
    if expected.error is not None:
        assert course.inside == expected.inside[: len(course.inside)]
    else:
        assert course.inside == expected.inside, differing(course.inside, expected.inside)
    values = (course.weight, course.rate, course.steps)
    assert values == (expected.weight, expected.rate, expected.steps), f"the variables are {values}"


def differing(events: list[Any], expected: list[Any]) -> str:
    """Say where two lists differ."""
    count = next(
        (i for i, pair in enumerate(zip(events, expected, strict=False)) if pair[0] != pair[1]),
        min(len(events), len(expected)),
    )
    return f"event {count} is {events[count : count + 2]}, and {expected[count : count + 2]} is due"


def _check_own_snapshots(scenario: Scenario, course: Course, weights: dict[int, int]) -> None:
    """Make sure that each result is that of its own epoch's weights, whatever has been left out."""
    for event in course.events:
        if event[0] != "end":
            continue
        for each in scenario.sets:
            name = f"val_{each.name}_loss" if each.name else "val_loss"
            if name in event[2] and each.kind == "held" and event[1] in weights:
                total = sum(evaluated(weights[event[1]], each.name, i, 0) for i in range(each.batches))
                assert event[2][name] == total, f"{event} is not that of {weights[event[1]]}"
