"""One run in a process of its own: `python -m scripts.bench.child JOB`.

JOB is JSON: {"job": "prepare" | "train" | "copies", …}. What it has to say goes to standard output, one
line of JSON, behind `MARK`; other lines there are anybody's.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import statistics
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from scripts.bench.records import RunRecord, RunSpec
from scripts.bench.stopwatch import Stopwatch
from scripts.bench.systems import SYSTEMS
from scripts.bench.workloads import WORKLOADS

__all__ = ["MARK", "copies", "prepare", "train"]

MARK = "scripts.bench "


def train(spec: RunSpec) -> tuple[RunRecord, float, float]:
    """Trains one epoch, then the timed ones; where the whole counts, the timed ones alone.

    Returns:
        The record, without load, and when the timed epochs began and ended, of `time.monotonic()`.
    """
    import keras

    keras.utils.set_random_seed(spec.repeat)
    workload = WORKLOADS[spec.workload]
    task = workload.task(Path(spec.cache_dir), quick=spec.quick)
    make = SYSTEMS[spec.system].load()
    stopwatch = Stopwatch()
    stopwatch.start()
    contender = make(workload, task, spec.threads or 1)
    if spec.whole:
        contender.train(spec.epochs)
        window = stopwatch.stop()
    else:
        window = contender.measure(spec.epochs)
    peak_rss_bytes = _peak_rss_bytes()
    record = RunRecord(
        spec.workload,
        spec.system,
        spec.threads,
        spec.repeat,
        spec.epochs,
        window.end_s - window.begin_s,
        window.cpu_s,
        peak_rss_bytes=peak_rss_bytes,
        **asdict(contender.outcome()),
    )
    return record, window.begin_s, window.end_s


def prepare(workload: str, cache_dir: str, quick: bool) -> dict[str, Any]:
    """Makes a workload's data once, so that the runs find what can be kept of it."""
    task = WORKLOADS[workload].task(Path(cache_dir), quick=quick)
    return {"source": task.source, "train": len(task.train), "validation": len(task.validation)}


def kernels(build: bool) -> dict[str, str]:
    """Says whether the trainer finds compiled convolutions, which it would not build by itself.

    Args:
        build: whether to build them first; a minute or two.
    """
    from overlap_train.conv import library

    ready = library.is_available() if build else library.is_built()
    how = "were compiled already" if ready else "were not compiled: python -m overlap_train.conv.build"
    return {"note": f"overlap_train's convolutions {how}"}


def copies(workload: str, cache_dir: str, workers: list[int]) -> list[dict[str, Any]]:
    """Measures, for each number of workers, paper P1's model copies and our snapshot, in seconds an epoch.

    The snapshot is timed by the trainer's own accounts, in epochs of twenty steps.
    """
    import overlap_train
    from scripts.bench.copies import copy_seconds

    chosen = WORKLOADS[workload]
    rows = []
    for count, copy_s in zip(workers, copy_seconds(chosen, workers), strict=True):
        examples = 20 * chosen.batch_size
        task = chosen.load(Path(cache_dir), examples, count * chosen.batch_size)
        policy = overlap_train.ValidationPolicy(workers=count, max_lag=1)
        trainer = overlap_train.Trainer(chosen.model(from_raw=True), validation=policy)
        trainer.fit(
            task.train.x,
            task.train.y,
            batch_size=chosen.batch_size,
            epochs=5,
            validation_data=(task.validation.x, task.validation.y),
            verbose=0,
        )
        snapshot_s = statistics.median(account.snapshot_s for account in trainer.accounts)
        rows.append({"workers": count, "copy_s": copy_s, "snapshot_s": snapshot_s})
    return rows


def main(argv: list[str]) -> int:
    """Does the job of the command line."""
    job = json.loads(argv[1])
    kind = job.pop("job")
    if kind == "train":
        system = SYSTEMS[job["system"]]
        for module in system.preloads:
            importlib.import_module(module)
        if system.configures:
            import overlap_train

            overlap_train.configure()
        record, begin_s, end_s = train(RunSpec(**job))
        _say({"record": record.to_json(), "begin_s": begin_s, "end_s": end_s})
    elif kind == "copies":
        _say(copies(**job))
    elif kind == "kernels":
        _say(kernels(**job))
    elif kind == "prepare":
        _say(prepare(**job))
    else:
        raise ValueError(f"no job is called {kind!r}; expected prepare, kernels, train or copies")
    return 0


def _say(result: Any) -> None:
    print(MARK + json.dumps(result), flush=True)


def _peak_rss_bytes() -> int:
    # ru_maxrss begins at the parent's size on Linux, so the kernel's own mark for this process is read.
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


if __name__ == "__main__":
    sys.exit(main(sys.argv))
