"""What earlier runs have measured, kept in the user's cache directory.

One small JSON file for each combination of model structure, data, machine and versions. A file that cannot
be read or written is as good as none: nothing here fails.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
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
        step_s: seconds for a step after that.
    """

    build_s: float
    step_s: float


Measurements = dict[Candidate, Timing]


class PlanCache:
    """The measurements of one training task; `None` for its file keeps nothing."""

    # What was measured on a busy machine would otherwise be believed for ever.
    _RUNS = 8

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def load(self) -> Measurements:
        """Returns what is known; nothing if the file is absent, damaged or of another format."""
        try:
            rows = self._read()["timings"]
            timings = {
                Candidate(int(row["splits"]), bool(row["jit"]), str(row["fast"])): Timing(
                    float(row["build_s"]), float(row["step_s"])
                )
                for row in rows
            }
        except (OSError, ValueError, KeyError, TypeError):
            return {}
        return timings if all(t.step_s > 0 and t.build_s >= 0 for t in timings.values()) else {}

    @property
    def confirmed(self) -> bool:
        """Whether what is known was measured in two runs."""
        try:
            return bool(self._read().get("confirmed", False))
        except (OSError, ValueError, AttributeError):
            return False

    def count_run(self) -> bool:
        """Counts a run that takes its plan from here; returns whether it should measure again instead.

        So should the first one, to confirm what is known, and after that every ninth.
        """
        try:
            content = self._read()
            runs = int(content.get("runs", 0)) + 1
        except (OSError, ValueError, TypeError, AttributeError):
            return True
        self._write({**content, "runs": runs})
        return runs > (self._RUNS if self.confirmed else 0)

    def save(self, timings: Mapping[Candidate, Timing], *, confirmed: bool = False) -> None:
        """Replaces the measurements; `confirmed` if they are the best of two runs."""
        rows = [
            {**dataclasses.asdict(c), "build_s": t.build_s, "step_s": t.step_s} for c, t in timings.items()
        ]
        self._write({"timings": rows, "runs": 0, "confirmed": confirmed})

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
    parts = [
        [(type(layer).__name__, getattr(layer, "rate", None)) for layer in _keras.flat_layers(model)],
        [(tuple(v.shape), v.dtype, v.trainable) for v in model.variables],
        [type(metric).__name__ for metric in _keras.metric_leaves(model)],
        type(model.optimizer).__name__,
        [(s.shape.as_list(), s.dtype.name) for s in keras.tree.flatten(element_spec) if hasattr(s, "shape")],
        facts,
        (platform.machine(), _processor(), available_cores()),
        (threading.get_intra_op_parallelism_threads(), threading.get_inter_op_parallelism_threads()),
        (tf.__version__, keras.__version__, __version__),
    ]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def _processor() -> str:
    """Returns the name of the processor, where the system tells."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()
