"""What earlier runs have measured, kept in the user's cache directory.

One small JSON file for each combination of model structure, data, threads and conditions
(`_support/conditions.py`). A file that cannot be read or written, or that holds what no run has measured, is
as good as none: nothing here fails.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from overlap_train._keras import metrics as keras_metrics
from overlap_train._keras import models as keras_models
from overlap_train._support.arguments import require_flag, require_text
from overlap_train._support.conditions import conditions
from overlap_train._support.files import read_regular, replace_content
from overlap_train._support.numbers import require_count, require_real
from overlap_train.options.threads import available_cores

__all__ = ["Candidate", "CandidateTiming", "Measurements", "PlanCache", "plan_key"]

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
