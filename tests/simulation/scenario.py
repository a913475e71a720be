"""What a simulated fit is to do, drawn by a seed, and what Keras would make of it.

The weight of the model is an integer, and a step, an evaluation and a callback's change are arithmetic on it
that depends on their order. So whatever is trained, validated or delivered at another place shows.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

_PRIME = 1_000_003
ACTIONS = ("stop", "rate", "weight")

# Functions of the package in which a signal comes on purpose: by chance it seldom meets them.
AIMS = (
    *("begin_epoch", "agree_on_steps", "run_call", "_end_epoch", "begin", "_deliver_next", "_roll_back"),
    *("_start", "draw", "draw_ahead", "begin_next", "wait_until_drawn", "wait", "epoch_begin", "release"),
)
SECOND_AIMS = (
    *("in_background", "_write_behind", "_checkpoint", "_start", "draw_ahead", "wait_until_drawn", "begin"),
    *("_deliver_in_grace", "deliver_until", "begin_next", "_deliver_next", "close", "wait"),
)


def stepped(weight: int, rate: int, batch: int) -> int:
    """Return the weight behind a training step."""
    return (weight * 31 + rate * 7 + batch * 13 + 1) % _PRIME


def evaluated(weight: int, name: str, batch: int, number: int) -> int:
    """Return what a batch adds to a set's metric; `number` is that of the pass where data is drawn anew."""
    return (weight * (17 + len(name)) + batch * 101 + number * 1009) % 1013


def acted(action: str, weight: int, rate: int) -> tuple[int, int]:
    """Return the weight and the rate as a callback sets them."""
    return (weight * 3 + 5) % _PRIME if action == "weight" else weight, rate + (action == "rate")


@dataclass(frozen=True)
class SetPlan:
    """A validation set: batches in memory, drawn anew by any worker, or drawn in the order of Keras."""

    name: str
    batches: int
    every: int
    kind: str  # "held", "streamed" or "ordered"

    def due(self, epoch: int) -> bool:
        return (epoch + 1) % self.every == 0


@dataclass(frozen=True)
class Scenario:
    """A fit, its callbacks, and what goes wrong.

    Attributes:
        actions: what the callback does, by its hook and the epoch.
        failure: what raises: "evaluation" (of an epoch), "step", "callback" (of an epoch), "write" or
            "thread" (the number of one); with its place.
        stuck: the epoch whose evaluation never ends, or None.
        signals: after how many switches of threads a signal comes, or in which function.
        kill_at: after how many switches the process is killed, or None.
    """

    epochs: int
    steps: int
    steps_per_call: int
    max_lag: int
    workers: int
    sets: tuple[SetPlan, ...]
    function: bool = False
    hooks: str = "ends"  # which callback listens: see `world.CALLBACKS`
    actions: dict[tuple[str, int], str] = field(default_factory=dict)
    policy: dict[str, Any] = field(default_factory=dict)
    judges: bool = False
    checkpoints: dict[str, Any] | None = None
    failure: tuple[str, int] | None = None
    stuck: int | None = None
    signals: tuple[int | str, ...] = ()
    kill_at: int | None = None

    @classmethod
    def of(cls, seed: Any) -> Scenario:
        """Draw a scenario."""
        draw = random.Random(f"scenario {seed}")
        epochs, steps = draw.randint(1, 5), draw.randint(1, 4)
        sets = tuple(_draw_set(draw, name) for name in ("", "b")[: draw.choice((0, 1, 1, 1, 2, 2))])
        is_held = all(each.kind == "held" for each in sets)
        scenario = cls(
            epochs,
            steps,
            draw.randint(1, 3),
            draw.choice((0, 1, 1, 1, 2, 3)),
            draw.randint(1, 4),
            sets,
            function=draw.random() < 0.15,
            hooks=draw.choice(("ends", "ends", "begins", "batches")),
            actions=_draw_actions(draw, epochs),
            policy=_draw_policy(draw, sets),
            judges=draw.random() < 0.2,
            checkpoints=_draw_checkpoints(draw) if draw.random() < 0.25 and is_held else None,
        )
        if draw.random() < 0.3:
            scenario = scenario._at_once(draw)
        return scenario._with_mishap(draw)

    def _at_once(self, draw: random.Random) -> Scenario:
        """Return a fit in which much goes on at once: ahead, inside epochs, changed, written and resumed."""
        epochs, steps, max_lag = draw.randint(3, 5), draw.randint(2, 4), draw.randint(1, 3)
        kind = draw.choice(("held", "held", "ordered"))
        sets = tuple(SetPlan(name, draw.randint(2, 5), 1, kind) for name in ("", "b")[: draw.randint(1, 2)])
        policy: dict[str, Any] = {}
        if kind == "held":
            policy["every_steps"] = draw.choice((1, 2, steps, steps))
        elif draw.random() < 0.7:
            policy["backlog"] = "latest"
        writes = {"every_epochs": draw.randint(1, 3), "every_steps": draw.choice((1, 2, steps))}
        actions = {(draw.choice(("begin", "end")), draw.randrange(epochs)): draw.choice(ACTIONS)}
        return replace(
            self,
            epochs=epochs,
            steps=steps,
            steps_per_call=draw.randint(1, steps),
            max_lag=max_lag,
            sets=sets,
            actions=actions if draw.random() < 0.6 else {},
            policy=policy,
            checkpoints=writes if kind == "held" and draw.random() < 0.7 else None,
        )

    def _with_mishap(self, draw: random.Random) -> Scenario:
        """Return a fit to which something happens, or nothing."""
        kinds = (None, "fails", "signal", "signal", "aimed", "resumes", "resumes", "stuck", "crowd")
        kind = draw.choice(kinds)
        if kind == "fails":
            what = draw.choice(("evaluation", "step", "callback", "write", "thread"))
            most = {"step": self.epochs * self.steps, "write": 3, "thread": 6}.get(what, self.epochs)
            return replace(self, failure=(what, draw.randrange(most)))
        if kind == "signal":
            first = int(draw.expovariate(1 / 150))
            second = (first + int(draw.expovariate(1 / 100)),) if draw.random() < 0.3 else ()
            return replace(self, signals=(first, *second))
        if kind == "aimed":
            first = draw.choice((int(draw.expovariate(1 / 150)), draw.choice(AIMS)))
            aims = SECOND_AIMS
            if any(each.kind == "ordered" for each in self.sets):
                aims = ("in_background", "_start")  # when a worker may wait for what nobody draws
            return replace(self, signals=(first, draw.choice(aims))[: draw.choice((1, 2, 2))])
        if kind == "crowd" and self.max_lag and draw.random() < 0.3:
            sets, policy = (SetPlan("", 2, 1, "held"),), {"backlog": "latest", "timeout_s": 8.0}
            crowd = replace(self, epochs=self.max_lag + 11, steps=1, steps_per_call=1, hooks="ends")
            return replace(crowd, sets=sets, actions={}, policy=policy, checkpoints=None, stuck=0)
        if kind == "resumes" and all(each.kind == "held" for each in self.sets):
            policy = self.checkpoints or _draw_checkpoints(draw)
            return replace(self, checkpoints=policy, kill_at=int(draw.expovariate(1 / 200)))
        if kind == "stuck" and self.sets and any(each.kind == "held" for each in self.sets):
            stuck, waits = draw.randrange(self.epochs), draw.random() < 0.5
            policy = {**self.policy, "timeout_s": 8.0} if waits else self.policy
            signals = () if waits else (min(400, int(draw.expovariate(1 / 150))),)
            return replace(self, stuck=stuck, policy=policy, signals=signals)
        return self

    @property
    def is_as_keras(self) -> bool:
        """Whether callbacks are to see what Keras shows them, unless the fit is ended from outside."""
        skips = self.policy.get("backlog", "block") != "block" or self.policy.get("on_error") == "warn"
        return not skips and self.policy.get("on_change", "rollback") == "rollback"

    def due(self, epoch: int) -> list[SetPlan]:
        return [each for each in self.sets if each.due(epoch)]


def _draw_set(draw: random.Random, name: str) -> SetPlan:
    kind = draw.choice(("held", "held", "held", "streamed", "ordered"))
    return SetPlan(name, draw.randint(1, 5), draw.choice((1, 1, 1, 2)), kind)


def _draw_actions(draw: random.Random, epochs: int) -> dict[tuple[str, int], str]:
    count = draw.choice((0, 0, 1, 2))
    return {
        (draw.choice(("begin", "end", "end")), draw.randrange(epochs)): draw.choice(ACTIONS)
        for _ in range(count)
    }


def _draw_policy(draw: random.Random, sets: tuple[SetPlan, ...]) -> dict[str, Any]:
    policy: dict[str, Any] = {}
    if draw.random() < 0.15:
        policy["backlog"] = "latest"
    if draw.random() < 0.1:
        policy["on_change"] = "continue"
    if draw.random() < 0.1:
        policy["on_error"] = "warn"
    if draw.random() < 0.3 and all(each.kind == "held" for each in sets):
        policy["every_steps"] = draw.choice((1, 2, 2, 3, 4))
    return policy


def _draw_checkpoints(draw: random.Random) -> dict[str, Any]:
    return {"every_epochs": draw.randint(1, 2), "every_steps": draw.choice((None, None, 1, 2, 3))}


@dataclass
class Course:
    """What came of a fit: what callbacks saw, the results inside epochs, the variables, and its error."""

    events: list[Any] = field(default_factory=list)
    inside: list[Any] = field(default_factory=list)
    weight: int = 1
    rate: int = 1
    steps: int = 0
    error: str | None = None
    ended: str | None = None


class Failed(Exception):
    """What a scenario has raised somewhere."""


class Keras:
    """Runs a scenario as Keras does: one thing after another."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.course = Course(ended="completed")
        self._passes = {each.name: 0 for each in scenario.sets}

    def run(self) -> Course:
        scenario, course = self.scenario, self.course
        try:
            stopped = False
            for epoch in range(scenario.epochs):
                if not stopped:
                    stopped = self._run_epoch(epoch)
            course.ended = "stopped" if stopped else "completed"
            course.events.append(("train end",))
        except Failed as error:
            course.error, course.ended = str(error), "failed"
        return course

    def _run_epoch(self, epoch: int) -> bool:
        scenario, course = self.scenario, self.course
        stops, total = self._act("begin", epoch), 0
        if scenario.hooks != "ends":
            course.events.append(("begin", epoch))
        for step in range(scenario.steps):
            if scenario.failure == ("step", course.steps):
                raise Failed("step")
            course.weight = stepped(course.weight, course.rate, 100 * epoch + step)
            total += course.weight % 1000
            course.steps += 1
            if scenario.hooks == "batches":
                course.events.append(("batch", step))
            every = scenario.policy.get("every_steps")
            if every and course.steps % every == 0 and (scenario.sets or scenario.function):
                course.inside.append((course.steps, self._validated(scenario.sets, epoch)))
            if stops:
                break  # Keras stops behind the first batch
        logs = {"loss": float(total), **self._validated(scenario.due(epoch), epoch)}
        course.events.append(("end", epoch, logs))
        if scenario.failure == ("callback", epoch):
            raise Failed("callback")
        return self._act("end", epoch) or stops

    def _act(self, hook: str, epoch: int) -> bool:
        action = self.scenario.actions.get((hook, epoch))
        if hook == "begin" and self.scenario.hooks == "ends":
            return False
        if action is not None:
            self.course.weight, self.course.rate = acted(action, self.course.weight, self.course.rate)
        return action == "stop"

    def _validated(self, sets: Any, epoch: int) -> dict[str, float]:
        logs, weight = {}, self.course.weight
        for each in sets:
            number = 0
            if each.kind != "held":
                self._passes[each.name] += 1
                number = self._passes[each.name]
            if self.scenario.failure == ("evaluation", epoch) and each.kind == "held":
                raise Failed("evaluation")
            value = sum(evaluated(weight, each.name, batch, number) for batch in range(each.batches))
            logs[f"val_{each.name}_loss" if each.name else "val_loss"] = float(value)
        if self.scenario.function:
            logs["val_fn"] = float(weight % 97)
        return logs
