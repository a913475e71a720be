"""Candidates of a plan: what they may gain, how they are timed on real steps, and what earlier runs measured.

What runs have measured lies in the user's cache directory: one small JSON file for each combination of model
structure, data, threads and conditions (`_support/caches.py`). A file that cannot be read or written, or that
holds what no run has measured, is as good as none: nothing here fails.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from overlap_train._keras import metrics as keras_metrics
from overlap_train._keras import models as keras_models
from overlap_train._support.arguments import require_count, require_flag, require_real, require_text
from overlap_train._support.caches import conditions
from overlap_train._support.files import read_regular, replace_content
from overlap_train.options.threads import available_cores

__all__ = [
    "TIMED_CALLS",
    "Candidate",
    "CandidateTiming",
    "Disturbance",
    "Measurements",
    "PlanCache",
    "Trial",
    "build_cost",
    "hoped_gain",
    "plan_key",
    "steps_of_a_timed_call",
]


# What of a layer decides how long it takes, beside its variables.
_ATTRIBUTES = (
    "activation",
    "compute_dtype",
    "data_format",
    "dilation_rate",
    "kernel_size",
    "padding",
    "pool_size",
    "rate",
    "return_sequences",
    "size",
    "strides",
)
# A file holds less than a kilobyte for each of a dozen candidates; no step takes less than this.
_MOST_BYTES, _MOST_CANDIDATES, _SHORTEST_S = 1 << 18, 256, 1e-9


@dataclass(frozen=True, slots=True)
class Candidate:
    """A way to execute the steps."""

    splits: int = 1  # parts of a batch that run at the same time
    jit: bool = False  # whether XLA compiles them
    fast: str = ""  # on faster operations than Keras's, such as "convolution, Adam"

    def __str__(self) -> str:
        splits = f"{self.splits} splits" if self.splits > 1 else "no splits"
        return f"{splits}, {'XLA' if self.jit else 'no XLA'}" + (f", fast {self.fast}" if self.fast else "")


@dataclass(frozen=True, slots=True)
class CandidateTiming:
    """What a candidate cost."""

    build_s: float  # tracing, compilation and the first step
    step_s: float  # the least that runs measured; infinite if it cannot be traced or compiled
    runs: int = 1  # that measured it, but for those next to which others took the cores

    @property
    def confirmed(self) -> bool:
        """Whether it can be relied on: another run measured it too, or it failed."""
        return self.runs > 1 or (self.runs == 1 and math.isinf(self.step_s))

    def and_then(self, again: CandidateTiming) -> CandidateTiming:
        """Return what is known once another run has measured it again."""
        if not self.runs:
            return again
        # Other programs make everything longer, never shorter.
        return CandidateTiming(
            min(again.build_s, self.build_s), min(again.step_s, self.step_s), self.runs + again.runs
        )


Measurements = dict[Candidate, CandidateTiming]


@dataclass(frozen=True, slots=True)
class _Content:
    """Of a file: what was measured, and how many runs have used it."""

    timings: Measurements = dataclasses.field(default_factory=dict)
    runs: int = 0


class PlanCache:
    """The measurements of one training task; `None` for its file keeps nothing."""

    # The one that measures, the one that confirms, and those that believe them: not for ever, as both may
    # have been disturbed.
    _RUNS = 10

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def load(self, may_doubt: Callable[[Measurements], bool] = lambda timings: True) -> Measurements:
        """Return what is known, for a run that begins; nothing if the file is absent, damaged or foreign.

        After some runs all is in doubt: the times are returned as measured by none. But where measuring again
        would be more than a little in the run that begins, as `may_doubt` says, the doubt is left to a longer
        one.
        """
        content = self._read()
        runs = content.runs + 1
        timings = content.timings
        if runs > self._RUNS and may_doubt(timings):
            runs, timings = 1, {c: dataclasses.replace(t, runs=0) for c, t in timings.items()}
        if timings:
            self._save(timings, min(runs, self._RUNS))
        return timings

    def save(self, timings: Mapping[Candidate, CandidateTiming]) -> None:
        """Replace the measurements."""
        self._save(timings, max(1, self._read().runs))

    def _read(self) -> _Content:
        if self._path is None:
            return _Content()
        try:
            text = read_regular(self._path, most_bytes=_MOST_BYTES).decode()
            return _parse(json.loads(text), self._path.stem, most_runs=self._RUNS)
        except (OSError, ValueError, LookupError, TypeError, OverflowError, RecursionError):
            return _Content()

    def _save(self, timings: Mapping[Candidate, CandidateTiming], runs: int) -> None:
        if self._path is None:
            return
        rows = [{**dataclasses.asdict(c), **dataclasses.asdict(t)} for c, t in timings.items()]
        with contextlib.suppress(OSError):
            replace_content(self._path, json.dumps({"key": self._path.stem, "timings": rows, "runs": runs}))


def _parse(content: Any, key: str, *, most_runs: int) -> _Content:
    """Return what a file holds; raise like any reader of JSON if it was not written here and for this."""
    if content["key"] != key:
        raise ValueError(f"this was written for {content['key']!r}")
    timings = {}
    for row in content["timings"][:_MOST_CANDIDATES]:
        fast = require_text("fast", row["fast"], empty=True)
        splits = require_count("splits", row["splits"], minimum=1)
        step_s = require_real("step_s", row["step_s"], minimum=_SHORTEST_S, infinite=True)
        build_s = require_real("build_s", row["build_s"], minimum=0)
        runs = require_count("runs", row["runs"], minimum=0)
        timings[Candidate(splits, require_flag("jit", row["jit"]), fast)] = CandidateTiming(
            build_s, step_s, runs
        )
    return _Content(timings, require_count("runs", content["runs"], minimum=1, maximum=most_runs))


def plan_key(model: keras.Model, element_spec: Any, *facts: Any) -> str:
    """Return what a plan is valid for, as a hash: structure, data, machine, threads and versions.

    Further facts need a stable `repr`.
    """
    threading = tf.config.threading
    layers = keras_models.flat_layers(model)
    parts = [
        [
            (type(layer).__name__, *(_text(getattr(layer, name, None)) for name in _ATTRIBUTES))
            for layer in layers
        ],
        [(tuple(v.shape), v.dtype, v.trainable) for v in model.variables],
        [_text(loss) for loss in keras.tree.flatten(model.loss)],
        [type(metric).__name__ for metric in keras_metrics.metric_leaves(model)],
        type(model.optimizer).__name__,
        [(s.shape.as_list(), s.dtype.name) for s in keras.tree.flatten(element_spec) if hasattr(s, "shape")],
        facts,
        conditions(),
        available_cores(),
        (threading.get_intra_op_parallelism_threads(), threading.get_inter_op_parallelism_threads()),
    ]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def _text(value: Any) -> str:
    """Return a text that is the same in every process, also of a function or an object."""
    if value is None or isinstance(value, (str, int, float, tuple, list)):
        return repr(value)
    return str(getattr(value, "__qualname__", type(value).__name__))


_CALL_S = 0.1


def hoped_gain(candidate: Candidate, best: Candidate, step_s: float) -> float:
    """Return the part of a step's time that a candidate might save; 0 if it is not worth a try.

    From experience on two cores (docs/results/2026-11-24-step-cost.md): XLA saves the cost of starting
    operations, which is all there is in steps below a millisecond and nothing in those of many; splitting
    is the reverse.
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


def build_cost(candidate: Candidate) -> float:
    """Return it in terms of a plain graph's."""
    return 4.5 if candidate.jit else 1.0 + candidate.splits / 4


def steps_of_a_timed_call(step_s: float) -> int:
    """Return how many steps a call has that is timed."""
    return max(1, min(4000, round(_CALL_S / step_s)))


# Others disturb when they have this part of the machine's time and hardly anything is left over.
_OTHERS, _LEFT = 0.1, 0.1
_LEAST_S = 0.05  # the system's clocks are coarse


@dataclass(frozen=True, slots=True)
class _Seconds:
    """CPU seconds so far: of this process, of all others, and of nobody."""

    own: float
    others: float
    idle: float


class Disturbance:
    """Watches the machine from its making on.

    A machine that has cores left over does not count as disturbed, whoever is at work on the rest: of a
    large one, a container may have but a few, and still sees all.
    """

    def __init__(self) -> None:
        self._before = _seconds()
        self._start_s = time.perf_counter()

    def found(self) -> bool:
        """Return whether others have competed for the cores; False where the system does not tell."""
        now = _seconds()
        if self._before is None or now is None or time.perf_counter() - self._start_s < _LEAST_S:
            return False
        others, idle = now.others - self._before.others, now.idle - self._before.idle
        total = now.own - self._before.own + others + idle
        return others > _OTHERS * total and idle < _LEFT * total


def _seconds() -> _Seconds | None:
    import psutil  # takes 15 ms, which a run that times nothing does not pay

    try:
        machine = psutil.cpu_times()
    except (OSError, psutil.Error, NotImplementedError, RuntimeError):
        return None
    times = os.times()
    own = times.user + times.system
    idle = machine.idle + getattr(machine, "iowait", 0.0)
    # What guests compute is in the times of user and nice already.
    guests = getattr(machine, "guest", 0.0) + getattr(machine, "guest_nice", 0.0)
    return _Seconds(own, sum(machine) - guests - idle - own, idle)


TIMED_CALLS = 2
# The first call traces and compiles, the second finds caches and allocators as the loop before left them.
_UNTIMED_CALLS = 2


class Trial:
    """Collects what the calls of one candidate took. On the training thread."""

    def __init__(
        self, candidate: Candidate, *, was_traced: bool, before: CandidateTiming | None = None
    ) -> None:
        self.candidate = candidate
        self.was_traced = was_traced
        self.build_s = 0.0
        self.steps_asked = 1
        self.calls = 0
        self._before = before
        self._first_steps = 1
        self._step_s = math.inf
        self._timed = 0
        self._watch = Disturbance()
        if before is not None:
            self.calls, self.steps_asked = 1, steps_of_a_timed_call(before.step_s)

    @property
    def over(self) -> bool:
        """Whether it has been timed."""
        return self._timed >= TIMED_CALLS

    def take(self, steps: int, seconds: float) -> None:
        """Count a call."""
        self.calls += 1
        if self.calls == 1:
            self.build_s += seconds
            self._first_steps = max(1, steps)
            self.steps_asked = 4
        elif steps >= min(self.steps_asked, 3):
            if self.calls > _UNTIMED_CALLS:
                self._timed += 1
            self._step_s = min(self._step_s, seconds / steps)
            self.steps_asked = steps_of_a_timed_call(self._step_s)

    def result(self) -> CandidateTiming:
        """Return what the candidate cost; not to be counted as a run's if others disturbed it."""
        runs = 0 if math.isfinite(self._step_s) and self._watch.found() else 1
        if self._before is not None:
            # What one of two looks saw undisturbed holds for both.
            return CandidateTiming(
                self._before.build_s, min(self._step_s, self._before.step_s), max(runs, self._before.runs)
            )
        steps_s = (self._first_steps - 1) * min(self._step_s, self.build_s)
        return CandidateTiming(max(0.0, self.build_s - steps_s), self._step_s, runs)
