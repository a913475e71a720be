"""What earlier runs have measured, kept in the user's cache directory.

One small JSON file for each combination of model structure, data, machine and versions. A file that cannot
be read or written is as good as none: nothing here fails.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import platform
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from overlap_train import _keras
from overlap_train._version import __version__
from overlap_train.configuration import available_cores

__all__ = ["Candidate", "Measurements", "PlanCache", "Timing", "cache_directory", "fingerprint"]

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
# What the compiled convolution reads.
_ENVIRONMENT = ("OVERLAP_TRAIN_CONV_HELPERS", "OVERLAP_TRAIN_CONV_ISA")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A way to execute the steps.

    Attributes:
        splits: parts of a batch that run side by side.
        jit: whether XLA compiles them.
        fast: what runs on faster operations than Keras's, such as "convolution, Adam"; "" if nothing does.
    """

    splits: int = 1
    jit: bool = False
    fast: str = ""


@dataclass(frozen=True, slots=True)
class Timing:
    """What a candidate cost.

    Attributes:
        build_s: seconds until its first step was done: tracing, compilation, that step.
        step_s: seconds for a step after that, the least of what the runs measured; infinite if it could not
            be traced or compiled.
        runs: how many runs measured that.
    """

    build_s: float
    step_s: float
    runs: int = 1

    @property
    def confirmed(self) -> bool:
        """Whether it can be relied on: another run measured it too, or it failed."""
        return self.runs > 1 or (self.runs == 1 and math.isinf(self.step_s))

    def and_then(self, again: Timing) -> Timing:
        """Returns what is known once another run has measured it again."""
        if not self.runs:
            return again
        # Other programs make everything longer, never shorter.
        return Timing(min(again.build_s, self.build_s), min(again.step_s, self.step_s), self.runs + 1)


Measurements = dict[Candidate, Timing]


class PlanCache:
    """The measurements of one training task; `None` for its file keeps nothing."""

    # The one that measures, the one that confirms, and those that believe them: not for ever, as both may
    # have been disturbed.
    _RUNS = 10

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def load(self) -> Measurements:
        """Returns what is known, for a run that begins; nothing if the file is absent, damaged or foreign.

        After some runs all is in doubt: the times are returned as measured by none.
        """
        try:
            content = self._read()
            timings = {
                Candidate(int(row["splits"]), bool(row["jit"]), str(row["fast"])): Timing(
                    float(row["build_s"]), float(row["step_s"]), int(row["runs"])
                )
                for row in content["timings"]
            }
            runs = int(content["runs"]) + 1
        except (OSError, ValueError, KeyError, TypeError):
            return {}
        if not all(t.step_s > 0 and t.build_s >= 0 for t in timings.values()):
            return {}
        if runs > self._RUNS:
            runs, timings = 1, {c: dataclasses.replace(t, runs=0) for c, t in timings.items()}
        self._save(timings, runs)
        return timings

    def save(self, timings: Mapping[Candidate, Timing]) -> None:
        """Replaces the measurements."""
        try:
            runs = int(self._read()["runs"])
        except (OSError, ValueError, KeyError, TypeError):
            runs = 1
        self._save(timings, runs)

    def _save(self, timings: Mapping[Candidate, Timing], runs: int) -> None:
        rows = [{**dataclasses.asdict(c), **dataclasses.asdict(t)} for c, t in timings.items()]
        self._write({"timings": rows, "runs": runs})

    def _read(self) -> dict[str, Any]:
        if self._path is None:
            return {}
        content: dict[str, Any] = json.loads(self._path.read_text(encoding="utf-8"))
        return content

    def _write(self, content: Mapping[str, Any]) -> None:
        """Replaces the file at once, so that a reader never sees half of it."""
        if self._path is None:
            return
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(dir=self._path.parent, suffix=".tmp")
            try:
                with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                    json.dump(content, file)
                os.replace(name, self._path)
            except OSError:
                os.unlink(name)


def cache_directory() -> Path | None:
    """Returns where plans are kept: below `XDG_CACHE_HOME` or `~/.cache`; None if there is no home."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "overlap_train" / "plans"
    except RuntimeError:
        return None


def fingerprint(model: keras.Model, element_spec: Any, *facts: Any) -> str:
    """Returns what a plan is valid for, as a hash: structure, data, machine, threads and versions.

    Args:
        model: built and compiled.
        element_spec: nested `tf.TensorSpec` of a batch.
        *facts: anything else with a stable `repr`.
    """
    threading = tf.config.threading
    layers = _keras.flat_layers(model)
    parts = [
        [
            (type(layer).__name__, *(_text(getattr(layer, name, None)) for name in _ATTRIBUTES))
            for layer in layers
        ],
        [(tuple(v.shape), v.dtype, v.trainable) for v in model.variables],
        [_text(loss) for loss in keras.tree.flatten(model.loss)],
        [type(metric).__name__ for metric in _keras.metric_leaves(model)],
        type(model.optimizer).__name__,
        [(s.shape.as_list(), s.dtype.name) for s in keras.tree.flatten(element_spec) if hasattr(s, "shape")],
        facts,
        (platform.machine(), _processor(), available_cores()),
        [os.environ.get(name) for name in _ENVIRONMENT],
        (threading.get_intra_op_parallelism_threads(), threading.get_inter_op_parallelism_threads()),
        (tf.__version__, keras.__version__, __version__),
    ]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def _text(value: Any) -> str:
    """Returns a text that is the same in every process, also of a function or an object."""
    if value is None or isinstance(value, (str, int, float, tuple, list)):
        return repr(value)
    return str(getattr(value, "__qualname__", type(value).__name__))


def _processor() -> str:
    """Returns the name of the processor, where the system tells."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()
