"""Chooses among ways to execute the steps by timing real ones, which count as training.

The first candidate trains from the first step on; what TensorFlow prepares when its loop first runs may be
prepared on a thread next to the tracing of other functions. When its steps have been timed, each further
candidate that could pay for its own tracing and compilation takes over for some calls. In a run that is long
enough, those that were nearly as fast as the best, or were disturbed, get a second look; then the fastest one
stays. No step is thrown away or made twice, and the batches keep their order. All of this belongs to the
training thread.
"""

from __future__ import annotations

import dataclasses
import math
import threading
import time
from collections.abc import Callable, Sequence

import tensorflow as tf

from overlap_train._data.cursor import Cursor
from overlap_train._data.feed import Feed
from overlap_train._support.threads import leaves_nothing
from overlap_train._training.loops import Loop, Pace, StepsDone
from overlap_train._training.trial import (
    TIMED_CALLS,
    Candidate,
    CandidateTiming,
    Measurements,
    PlanCache,
    Trial,
    build_cost,
    hoped_gain,
    steps_of_a_timed_call,
)

__all__ = ["PlannedLoop", "WarmUp", "describe"]


class WarmUp:
    """Runs a compiled function on nothing, on a thread of its own.

    Optimising a graph and making its kernels takes TensorFlow as long as hundreds of steps, needs one core
    and leaves Python alone. What goes wrong is not reported: it comes again with the first true call. Where
    the system starts no more threads, that call prepares it.
    """

    def __init__(self, work: Callable[[], object]) -> None:
        self._work: Callable[[], object] | None = work
        self._seconds = 0.0
        self._thread = threading.Thread(target=self._run, name="loop-warm-up", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # can't start new thread
            self._work = None

    def wait(self) -> float:
        """Wait for its end; return how long it took, in seconds."""
        if self._thread.ident is not None:
            self._thread.join()
        return self._seconds

    @leaves_nothing
    def _run(self) -> None:
        start_s = time.monotonic()
        work, self._work = self._work, None  # which holds the data
        try:
            assert work is not None
            work()
        except Exception:
            pass
        finally:
            self._seconds = time.monotonic() - start_s


# XLA makes one operation of the small ones of each time step, of which there are as many in a long step.
_RECURRENT_GAIN = 0.3
# Beside another loop on the same operations that was slower, the hope is so much smaller.
_LOST = 1 / 3
_UNTIMED_STEPS = 5
_PATIENCE = 12

# A time that was measured once may be so many times too long, as far as it is worth a second look.
_DOUBT = 2.0
# For which a run has to go on so long for each candidate: a look takes 0.3 s, of which a part is lost.
_LOOK_PAYS_S = 5.0


class PlannedLoop(Loop):
    """A loop that becomes the fastest of several candidates, tried in their order; the first needs no reason.

    What one run has measured, another confirms; then both are believed for some runs, and in short ones until
    a longer one looks again.
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
        is_traced: Callable[[Candidate], bool] = lambda candidate: False,
        free: str = "",
        fast_extra_s: float = 0.0,
        recurrent: bool = False,
    ) -> None:
        self._recurrent = recurrent
        self._free = free
        self._fast_extra_s = fast_extra_s
        self._is_traced = is_traced
        self._build = build
        self._pace = pace
        self._steps_left = total_steps
        self._cache = cache
        self._message = message
        self._loops: dict[Candidate, Loop] = {}
        self._unsaved = False
        possible = self._recall(candidates)
        self._trial: Trial | None = None
        self._warm_up: WarmUp | None = None
        self._calls = 0
        start = self._best(possible) if possible else self._candidates[0]
        self._candidates.sort(key=lambda candidate: candidate != start)
        self._was_traced = is_traced(start)
        if start in possible and self._too_few_steps(possible[start].step_s):
            self._timings[start] = possible[start]
        if len(self._candidates) == 1:
            self._settle(start)
        elif start not in self._timings:
            self._begin(start)
        else:
            self._go_on(start)

    def _recall(self, candidates: Sequence[Candidate]) -> Measurements:
        """Take in what earlier runs have measured, and leave out what they have seen fail.

        Returns their times, believed or not.
        """
        self._known = self._cache.load(self._looks_are_little) if len(candidates) > 1 else {}
        self._earlier = dict(self._known)
        self._looked: Measurements = {}  # in this run
        self._looked_again: set[Candidate] = set()
        failed = {c for c, t in self._known.items() if t.confirmed and math.isinf(t.step_s)}
        self._candidates = [c for c in candidates if c not in failed] or list(candidates)
        possible = {c: t for c, t in self._known.items() if c in self._candidates and math.isfinite(t.step_s)}
        self._timings = {c: t for c, t in possible.items() if t.confirmed}
        return possible

    @property
    def name(self) -> str:  # type: ignore[override]
        """Of the loop that makes the steps at present."""
        return self._loop.name

    @property
    def settled(self) -> bool:
        return self._trial is None

    @property
    def plan(self) -> str:
        return str(self._candidate)

    def keep_to(self, plan: str) -> None:
        candidate = next((each for each in self._candidates if str(each) == plan), None)
        if candidate is None:
            self._message(
                f"the steps may round otherwise than before the checkpoint, where the plan was: {plan}"
            )
        elif self._trial is not None or candidate != self._candidate:
            self._waited_s()
            self._settle(candidate)

    def run(self, cursor: Cursor, max_steps: int) -> StepsDone:
        done = self._run(cursor, max_steps)
        if self._unsaved:  # only now that a step has shown that the data are not to blame
            self._unsaved = False
            self._cache.save(self._known)
        return done

    def begin_warm_up(self, feed: Feed) -> None:
        work = None if self._was_traced else self._loop.on_nothing(feed)
        self._warm_up = WarmUp(work) if work is not None else None

    def close(self) -> None:
        self._waited_s()

    def close_now(self) -> None:
        """Nothing: the warm-up ends by itself."""

    def finish(self) -> None:
        if self._trial is not None:
            plan = describe(self._loop.name, self._trial.candidate, None, None, self._free)
            self._message(f"{plan} (the run was too short to time it)")

    def _waited_s(self) -> float:
        """Wait until nothing else runs the loop; return how long that took to prepare it."""
        warm_up, self._warm_up = self._warm_up, None
        return 0.0 if warm_up is None else warm_up.wait()

    def _run(self, cursor: Cursor, max_steps: int) -> StepsDone:
        prepared_s = self._waited_s()
        if self._trial is None:
            return self._loop.run(cursor, max_steps)
        start_s, trial = time.monotonic(), self._trial
        trial.build_s += prepared_s
        remaining = cursor.remaining()
        try:
            done = self._loop.run(cursor, max_steps)
        except tf.errors.OpError:
            if not trial.candidate.jit or trial.calls or len(self._candidates) == 1:
                raise
            # XLA could not compile it, so no step was made; an error of the data comes again without XLA.
            self._give_up(trial)
            return self._run(cursor, max_steps)
        if self._steps_left is not None:
            self._steps_left -= done.steps
        self._calls += 1
        single_steps = max_steps < min(trial.steps_asked, remaining or trial.steps_asked)
        if single_steps or self._calls > _PATIENCE * len(self._candidates):
            possible = self._possible()
            self._settle(self._best(possible) if possible else trial.candidate)
        else:
            self._take(trial, done.steps, time.monotonic() - start_s)
        return done

    def _take(self, trial: Trial, steps: int, seconds: float) -> None:
        """Count a call of a trial, and end the trial when it was the last."""
        trial.take(steps, seconds)
        if not trial.over:
            self._pace.ask(trial.steps_asked)
            return
        self._note(trial.candidate, trial.result(), was_traced=trial.was_traced)
        self._go_on(self._best(self._possible()))

    def _note(self, candidate: Candidate, result: CandidateTiming, *, was_traced: bool = False) -> None:
        """Keep what a trial has shown, to be believed in this run."""
        if candidate in self._looked:
            self._looked_again.add(candidate)
        self._looked[candidate] = timing = result
        earlier = self._earlier.get(candidate)
        if earlier is not None and was_traced:
            timing = dataclasses.replace(timing, build_s=earlier.build_s)
        if earlier is not None and math.isfinite(result.step_s):
            timing = earlier.and_then(timing)
        self._timings[candidate] = self._known[candidate] = timing
        self._unsaved = True

    def _go_on(self, best: Candidate) -> None:
        """Begin the next trial, or ends the search with the best candidate."""
        following = self._next_candidate(best) or self._next_rival(best)
        if following is not None:
            self._begin(following)
        else:
            self._settle(best)

    def _begin(self, candidate: Candidate) -> None:
        start_s = time.monotonic()
        before = self._looked.get(candidate)
        trial = Trial(candidate, was_traced=self._is_traced(candidate), before=before)
        try:
            self._loop = self._loop_of(candidate)
        except (tf.errors.OpError, TypeError, ValueError, NotImplementedError):
            if len(self._candidates) == 1:
                raise
            self._give_up(trial)
            return
        trial.build_s = time.monotonic() - start_s
        self._trial, self._candidate = trial, candidate
        self.splits = candidate.splits
        self._pace.ask(trial.steps_asked)

    def _give_up(self, trial: Trial) -> None:
        """Go on without a candidate that cannot be traced or compiled."""
        self._candidates.remove(trial.candidate)
        self._loops.pop(trial.candidate, None)
        self._note(trial.candidate, CandidateTiming(trial.build_s, math.inf))
        possible = self._possible()
        if possible:
            self._go_on(self._best(possible))
        else:
            self._begin(self._candidates[0])

    def _settle(self, candidate: Candidate) -> None:
        self._trial, self._candidate = None, candidate
        self._loop = self._loop_of(candidate)
        self.splits = candidate.splits
        self._loops.clear()
        timing = self._timings.get(candidate)
        measured = self._calls > 0 and timing is not None
        self._pace.settle(timing.step_s if timing is not None and measured else None)
        steps = self._pace.steps() if measured or self._pace.fixed else None
        step_s = timing.step_s if timing else None
        self._message(describe(self._loop.name, candidate, steps, step_s, self._free))

    def _loop_of(self, candidate: Candidate) -> Loop:
        if candidate not in self._loops:
            self._loops[candidate] = self._build(candidate)
        return self._loops[candidate]

    def _possible(self) -> Measurements:
        """Return the times that are believed, of candidates that did not fail."""
        return {c: t for c, t in self._timings.items() if math.isfinite(t.step_s)}

    def _best(self, timings: Measurements) -> Candidate:
        """Return what takes the least time for the rest of the run, tracing included."""
        steps = self._steps_left if self._steps_left is not None else 100_000

        def cost_s(candidate: Candidate) -> float:
            traced = candidate in self._loops or self._is_traced(candidate)
            timing = timings[candidate]
            return (0.0 if traced else timing.build_s) + steps * timing.step_s

        return min(timings, key=cost_s)

    def _next_candidate(self, best: Candidate) -> Candidate | None:
        """Return a candidate to be timed that would pay for itself in this run if it did as is hoped."""
        step_s = self._timings[best].step_s
        if self._steps_left is None or self._too_few_steps(step_s):
            return None
        for candidate in self._candidates:
            if candidate in self._timings:
                continue
            gain_s = self._steps_left * step_s * self._hoped_gain(candidate, best)
            if gain_s > self._build_s(candidate, best):
                return candidate
        return None

    def _next_rival(self, best: Candidate) -> Candidate | None:
        """Return a candidate to be looked at again: what disturbed the first look may be over."""
        step_s = self._timings[best].step_s
        rivals = {
            candidate: seen
            for candidate, seen in self._looked.items()
            if math.isfinite(seen.step_s) and (seen.step_s < _DOUBT * step_s or not seen.runs)
        }
        if len(rivals) < 2 or not self._looks_are_little(rivals):
            return None
        # The one that will probably stay comes last.
        ordered = sorted(rivals, key=lambda candidate: candidate == best)
        return next((candidate for candidate in ordered if candidate not in self._looked_again), None)

    def _looks_are_little(self, timings: Measurements) -> bool:
        """Whether a look at each of these candidates takes a small part of the rest of the run."""
        finite = {c: t for c, t in timings.items() if math.isfinite(t.step_s)}
        if not finite:
            return True
        left_s = (self._steps_left or 0) * finite[self._best(finite)].step_s
        return left_s >= _LOOK_PAYS_S * len(finite)

    def _too_few_steps(self, step_s: float) -> bool:
        """Whether the run will end before a trial does."""
        needed = _UNTIMED_STEPS + TIMED_CALLS * steps_of_a_timed_call(step_s)
        return self._steps_left is not None and self._steps_left < needed

    def _hoped_gain(self, candidate: Candidate, best: Candidate) -> float:
        """Return the part of a step's time that a candidate might save."""
        step_s, doubtful = self._timings[best].step_s, self._known.get(candidate)
        near = 1 - 1 / _DOUBT if doubtful is not None and doubtful.step_s < _DOUBT * step_s else 0.0
        if doubtful is not None and doubtful.runs:
            return near
        if candidate.jit and self._recurrent:
            return max(near, _RECURRENT_GAIN)
        hope = hoped_gain(candidate, best, step_s)
        if candidate.fast and not best.fast:
            hope *= _LOST ** sum(1 for seen in self._timings if seen.fast)
        return max(near, hope)

    def _build_s(self, candidate: Candidate, best: Candidate) -> float:
        """Return how long it takes to trace and compile a candidate, as far as can be told."""
        if self._is_traced(candidate):
            return 0.0
        known = self._known.get(candidate)
        if known is not None and known.runs:
            return known.build_s
        extra_s = self._fast_extra_s if candidate.fast else 0.0
        return self._timings[best].build_s * build_cost(candidate) / build_cost(best) + extra_s


def describe(
    loop: str, candidate: Candidate, steps_per_call: int | None, step_s: float | None, free: str = ""
) -> str:
    """Return the plan in one line."""
    text = f"plan: {loop}, {candidate}"
    if free and not candidate.fast:
        text += f", fast {free}"
    if steps_per_call is not None:
        text += f", {steps_per_call} steps a call"
    if step_s is not None:
        text += f" (measured {step_s * 1e3:.3g} ms a step)"
    return text
