"""What the host does for each step of an epoch: Python that it calls, operations that its executor starts.

    python -m scripts.gpu.epoch_profile

A fit of many steps is compared with one of few, so that what an epoch costs as a whole drops out. It needs no
card: what the host does between two steps there, it does here too.
"""

from __future__ import annotations

import functools
import re
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from scripts.gpu.driver import Row, table
from scripts.gpu.stages import Context

LOOPS = ("keras", "keras, 4 steps a call", "overlap_train", "overlap_train, XLA")
_REPEATS = 3
_FEW, _MANY, _BATCH = 4, 20, 8  # the profiler drops what is beyond some 10,000 operations
_OPERATION = re.compile(r"[^\s:]+:[A-Z]\w*")  # such as while/body/_1/while/mul:Mul


def profile(context: Context) -> dict[str, Any]:
    """Count both for each loop: a row for each."""
    for loop in context.todo(LOOPS, str):
        context.record.add(loop, per_step(loop))
    return {"loops": len(context.record.rows)}


def per_step(loop: str) -> dict[str, float]:
    """Return the calls of Python functions and the operations of the executor for one step more."""
    fit = _fit(loop)
    counts = []
    for steps in (_FEW, _MANY):
        epoch = functools.partial(fit, steps)
        epoch()  # which traces, and for XLA compiles
        # First: operations that have proved to be cheap are left out of a profile.
        operations = _operations(epoch)
        # The least of some: the interpreter's own work, such as collecting garbage, comes at any time.
        counts.append((min(_python_calls(epoch) for _ in range(_REPEATS)), operations))
    more_calls, more_operations = ((many - few) / (_MANY - _FEW) for few, many in zip(*counts, strict=True))
    return {"python_calls": more_calls, "operations": more_operations}


def _fit(loop: str) -> Callable[[int], object]:
    """Return a fit of one epoch of some steps by one of LOOPS, on a small network."""
    import keras

    from overlap_train import ExecutionPlan, Trainer

    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(16, activation="relu"), keras.layers.Dense(4)]
    model = keras.Sequential([keras.Input((8,)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, steps_per_execution=4 if loop == LOOPS[1] else 1)
    trainer = model
    if loop.startswith("overlap_train"):
        plan = ExecutionPlan(steps_per_call=_MANY, jit=loop == LOOPS[3], kernels="keras", batch_splits=1)
        trainer = Trainer(model, execution=plan)

    def fit(steps: int) -> object:
        rows = np.ones((steps * _BATCH, 8), np.float32), np.zeros(steps * _BATCH, np.int32)
        return trainer.fit(*rows, batch_size=_BATCH, shuffle=False, verbose=0)

    return fit


def _python_calls(work: Callable[[], object]) -> int:
    """Return how many Python functions are called, by this thread and by those that begin meanwhile."""
    counts: dict[int, int] = {}

    def count(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            thread = threading.get_ident()
            counts[thread] = counts.get(thread, 0) + 1

    threading.setprofile(count)
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return sum(counts.values())


def _operations(work: Callable[[], object]) -> int:
    """Return how many operations TensorFlow's executor has run, by its profiler; XLA's program is one."""
    import tensorflow as tf
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    profiler = tf.profiler.experimental
    options = profiler.ProfilerOptions(host_tracer_level=2, python_tracer_level=0, device_tracer_level=0)
    with tempfile.TemporaryDirectory() as directory:
        with profiler.Profile(directory, options):
            work()
        (file,) = Path(directory).rglob("*.xplane.pb")
        space = xplane_pb2.XSpace.FromString(file.read_bytes())
    return sum(
        _OPERATION.fullmatch(plane.event_metadata[event.metadata_id].name) is not None
        for plane in space.planes
        for line in plane.lines
        for event in line.events
    )


def page_of_profile(rows: list[Row]) -> str:
    """Return the counts of each loop."""
    lines = [(row["key"], row["python_calls"], row["operations"]) for row in rows]
    return table(
        ("for each further step of an epoch", "calls of Python functions", "operations started"), lines
    )


if __name__ == "__main__":
    print(page_of_profile([{"key": loop} | per_step(loop) for loop in LOOPS]))
