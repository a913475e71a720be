"""One job of the comparison of systems in a process of its own: `python -m scripts.bench.compare_child JOB`.

JOB is JSON: {"job": "prepare" | "train", …}; the last line of standard output is what it came to.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any


def prepare(workload: str, cache_dir: str, quick: bool) -> str:
    """Makes a workload's data once, so that the runs find what can be kept of it; says which data it is."""
    from scripts.bench.workloads import WORKLOADS

    task = WORKLOADS[workload].task(Path(cache_dir), quick=quick)
    return f"{task.source}; {len(task.train):,} + {len(task.validation):,} examples"


def train(
    workload: str,
    system: str,
    threads: int | None,
    repeat: int,
    epochs: int,
    quick: bool,
    cache_dir: str,
    whole: bool,
) -> dict[str, Any]:
    """Trains one epoch, then the timed ones; where the whole counts, the timed ones alone.

    `repeat` is also the seed of weights and order.
    """
    from scripts.bench.systems import OURS, SYSTEMS

    if system in OURS:
        import overlap_train

        overlap_train.configure()
    import keras

    from scripts.bench import contenders
    from scripts.bench.machine import status_bytes
    from scripts.bench.workloads import WORKLOADS

    keras.utils.set_random_seed(repeat)
    chosen = WORKLOADS[workload]
    task = chosen.task(Path(cache_dir), quick=quick)
    make: type[contenders.Contender] = getattr(contenders, SYSTEMS[system].contender)
    stopwatch = contenders.Stopwatch()
    stopwatch.start()
    contender = make(chosen, task, threads or 1)
    if whole:
        contender.train(epochs)
        wall_s, cpu_s = stopwatch.stop()
    else:
        wall_s, cpu_s = contender.measure(epochs)
    figures = {"wall_s": wall_s, "cpu_s": cpu_s, "peak_rss_bytes": status_bytes("VmHWM")}
    return figures | asdict(contender.outcome())


def main(job: dict[str, Any]) -> None:
    """Does a job and prints what it came to."""
    jobs: dict[str, Callable[..., Any]] = {"prepare": prepare, "train": train}
    print(json.dumps(jobs[job.pop("job")](**job)))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
