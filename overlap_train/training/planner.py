"""Chooses among ways to execute the steps by timing real ones, which count as training.

The first candidate trains from the first step on. When its steps have been timed, each further candidate
that could pay for its own tracing and compilation takes over for some calls; then the fastest one stays.
No step is thrown away or made twice, and the batches keep their order. All of this belongs to the training
thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tensorflow as tf

from overlap_train.data.cursor import Cursor
from overlap_train.training.loops import Loop, StepsDone
from overlap_train.training.pace import Pace
from overlap_train.training.plan_cache import Candidate, Measurements, PlanCache, Timing

__all__ = ["PlannedLoop", "describe"]

_CALL_S = 0.1
_TIMED_CALLS = 2
_PATIENCE = 12

# What is measured serves the runs that follow: a candidate need not pay in this one alone.
_RUNS_SERVED = 3


@dataclass
class _Trial:
    """A candidate while it is being timed."""

    candidate: Candidate
    build_s: float
    steps_asked: int = 1
    calls: int = 0
    step_s: float = float("inf")
    timed: int = 0


class PlannedLoop(Loop):
    """A loop that becomes the fastest of several.

    Args:
        candidates: in the order in which to try them; the first one needs no reason.
        build: traces the loop of a candidate.
        pace: told how many steps the calls of a trial should have, and at the end what a step takes.
        total_steps: training steps of the whole run, or None if nobody knows.
        cache: what earlier runs have measured. One run measures again and begins with what was best; the
            shorter times of the two are believed for some runs, after which the same is done anew.
        message: says the plan, once.
        fast_extra_s: what tracing a candidate with faster operations takes besides, once.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        build: Callable[[Candidate], Loop],
        pace: Pace,
        *,
        total_steps: int | None,
        cache: PlanCache,
        message: Callable[[str], None],
        fast_extra_s: float = 0.0,
    ) -> None:
        self._fast_extra_s = fast_extra_s
        self._candidates = list(candidates)
        self._build = build
        self._pace = pace
        self._steps_left = total_steps
        self._cache = cache
        self._message = message
        self._loops: dict[Candidate, Loop] = {}
        self._cached = cache.load()
        self._timings: Measurements = {c: t for c, t in self._cached.items() if c in self._candidates}
        self._to_confirm: Measurements = {}
        self._trial: _Trial | None = None
        self._calls = 0
        start = self._best() if self._timings else self._candidates[0]
        if self._timings and cache.count_run():
            self._to_confirm = {} if cache.confirmed else self._timings
            self._timings = {}
            self._candidates.sort(key=lambda candidate: candidate != start)
        if self._timings or len(self._candidates) == 1:
            following = self._next_candidate(start) if self._timings else None
            if following is None:
                self._settle(start)
                return
            start = following
        self._begin(start)

    @property
    def name(self) -> str:  # type: ignore[override]
        """Of the loop that makes the steps at present."""
        return self._loop.name

    def run(self, cursor: Cursor, max_steps: int) -> StepsDone:
        if self._trial is None:
            return self._loop.run(cursor, max_steps)
        start_s, trial = time.monotonic(), self._trial
        remaining = cursor.remaining()
        try:
            done = self._loop.run(cursor, max_steps)
        except tf.errors.OpError:
            if not trial.candidate.jit or trial.calls:
                raise
            # XLA could not compile it, so no step was made; an error of the data comes again without XLA.
            self._give_up(trial)
            return self.run(cursor, max_steps)
        if self._steps_left is not None:
            self._steps_left -= done.steps
        self._calls += 1
        single_steps = max_steps < min(trial.steps_asked, remaining or trial.steps_asked)
        if single_steps or self._calls > _PATIENCE * len(self._candidates):
            self._settle(self._best() if self._timings else trial.candidate)
        else:
            self._take(trial, done.steps, time.monotonic() - start_s)
        return done

    def _take(self, trial: _Trial, steps: int, seconds: float) -> None:
        """Counts a call of a trial, and ends the trial when it was the last."""
        trial.calls += 1
        if trial.calls == 1:
            trial.build_s += seconds
            trial.steps_asked = 4
        elif steps >= min(trial.steps_asked, 3):
            if trial.calls > 2:
                trial.timed += 1
            trial.step_s = min(trial.step_s, seconds / steps)
            trial.steps_asked = max(1, min(4000, round(_CALL_S / trial.step_s)))
        if trial.timed < _TIMED_CALLS:
            self._pace.ask(trial.steps_asked)
            return
        earlier = self._to_confirm.get(trial.candidate)
        # Other programs make steps longer, never shorter.
        step_s = min(trial.step_s, earlier.step_s) if earlier else trial.step_s
        self._timings[trial.candidate] = Timing(trial.build_s, step_s)
        best = min(self._timings, key=lambda c: self._timings[c].step_s)
        following = self._next_candidate(best)
        if following is not None:
            self._begin(following)
            return
        self._cache.save({**self._cached, **self._timings}, confirmed=bool(self._to_confirm))
        self._settle(best)

    def _begin(self, candidate: Candidate) -> None:
        start_s = time.monotonic()
        try:
            self._loop = self._loop_of(candidate)
        except (tf.errors.OpError, TypeError, ValueError, NotImplementedError):
            if len(self._candidates) == 1:
                raise
            self._give_up(_Trial(candidate, 0.0))
            return
        self._trial = _Trial(candidate, time.monotonic() - start_s)
        self._pace.ask(1)

    def _give_up(self, trial: _Trial) -> None:
        """Goes on without a candidate that cannot be traced or compiled."""
        self._candidates.remove(trial.candidate)
        if not self._timings:
            self._begin(self._candidates[0])
            return
        best = self._best()
        following = self._next_candidate(best)
        if following is not None:
            self._begin(following)
        else:
            self._settle(best)

    def _settle(self, candidate: Candidate) -> None:
        self._trial = None
        self._loop = self._loop_of(candidate)
        self._loops.clear()
        timing = self._timings.get(candidate)
        measured = self._calls > 0 and timing is not None
        self._pace.settle(timing.step_s if timing is not None and measured else None)
        steps = self._pace.steps() if measured or self._pace.fixed else None
        self._message(describe(self._loop.name, candidate, steps, timing.step_s if timing else None))

    def _loop_of(self, candidate: Candidate) -> Loop:
        if candidate not in self._loops:
            self._loops[candidate] = self._build(candidate)
        return self._loops[candidate]

    def _best(self) -> Candidate:
        """Returns what takes the least time for the rest of the run, tracing included."""
        steps = self._steps_left if self._steps_left is not None else 100_000
        timings = self._timings
        return min(timings, key=lambda c: timings[c].build_s + steps * timings[c].step_s)

    def _next_candidate(self, best: Candidate) -> Candidate | None:
        """Returns a candidate not yet timed that would pay for itself if it did what is hoped of it."""
        if self._steps_left is None:
            return None
        timing = self._timings[best]
        for candidate in self._candidates:
            if candidate in self._timings:
                continue
            if candidate.fast and not best.fast and any(known.fast for known in self._timings):
                continue  # they have lost already
            gain_s = (
                _RUNS_SERVED * self._steps_left * timing.step_s * _hoped_gain(candidate, best, timing.step_s)
            )
            extra_s = self._fast_extra_s if candidate.fast else 0.0
            if gain_s > timing.build_s * _relative_build_cost(candidate, best) + extra_s:
                return candidate
        return None


def describe(loop: str, candidate: Candidate, steps_per_call: int | None, step_s: float | None) -> str:
    """Returns the plan in one line."""
    splits = f"{candidate.splits} splits" if candidate.splits > 1 else "no splits"
    text = f"plan: {loop}, {splits}, {'XLA' if candidate.jit else 'no XLA'}"
    if candidate.fast:
        text += f", fast {candidate.fast}"
    if steps_per_call is not None:
        text += f", {steps_per_call} steps a call"
    if step_s is not None:
        text += f" (measured {step_s * 1e3:.3g} ms a step)"
    return text


def _hoped_gain(candidate: Candidate, best: Candidate, step_s: float) -> float:
    """Returns the part of a step's time that a candidate might save; 0 if it is not worth a try.

    From experience on two cores (docs/performance.md): XLA saves the cost of starting operations, which
    is all there is in steps below a millisecond and nothing in those of many; splitting is the reverse.
    Fast kernels save most in convolutions; from them there is no way back to be tried.
    """
    if candidate.fast and not best.fast:
        return 0.3 if step_s > 1e-3 else 0.0
    if best.fast and not candidate.fast:
        return 0.0
    if best.fast and best.splits > candidate.splits == 1:
        return 0.1  # the kernels use all cores by themselves
    if candidate.jit:
        return 0.75 if step_s < 2e-3 else 0.0
    if candidate.splits > 1:
        return (0.4 if best.splits == 1 else 0.03) if step_s > 1e-3 else 0.0
    return 0.3 if step_s < 2e-3 else 0.0


def _relative_build_cost(candidate: Candidate, best: Candidate) -> float:
    """Returns how much longer a candidate takes to trace and compile than one that is known."""
    return _build_cost(candidate) / _build_cost(best)


def _build_cost(candidate: Candidate) -> float:
    """Returns it in terms of a plain graph's."""
    return 4.5 if candidate.jit else 1.0 + candidate.splits / 4
