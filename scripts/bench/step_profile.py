"""How many operations run at a time in training, and which run alone: a profile of one epoch.

python -m scripts.bench.step_profile --workload mnist
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import tensorflow as tf

import overlap_train
from scripts.bench import pipelines
from scripts.bench.workloads import WORKLOADS

__all__ = ["Interval", "Occupation", "occupation", "profile"]

# They only contain others.
_CONTAINERS = {"While", "StatelessWhile", "If", "StatelessIf", "PartitionedCall", "StatefulPartitionedCall"}


@dataclass(frozen=True, slots=True)
class Interval:
    """One run of an operation on one thread, in seconds of the profile's clock."""

    operation: str
    thread: int
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Occupation:
    """What the threads did between the first and the last operation.

    Attributes:
        span_s: from the first operation to the end of the last.
        at_once_s: seconds in which exactly so many threads ran an operation, by that number.
        alone_s: seconds in which an operation ran and no other did, by its kind.
        total_s: seconds in which it ran at all, by its kind.
    """

    span_s: float
    at_once_s: dict[int, float]
    alone_s: dict[str, float]
    total_s: dict[str, float]


def occupation(intervals: Iterable[Interval]) -> Occupation:
    """Adds up how many of the intervals lie over each other.

    Raises:
        ValueError: there are none.
    """
    changes: list[tuple[float, int, Interval]] = []
    total: dict[str, float] = defaultdict(float)
    for interval in intervals:
        if interval.end_s <= interval.start_s:  # too short for the clock
            continue
        changes += [(interval.start_s, 1, interval), (interval.end_s, -1, interval)]
        total[interval.operation] += interval.end_s - interval.start_s
    if not changes:
        raise ValueError("the profile has no operations")
    changes.sort(key=lambda change: change[:2])
    running: dict[int, Interval] = {}
    at_once: dict[int, float] = defaultdict(float)
    alone: dict[str, float] = defaultdict(float)
    before_s = changes[0][0]
    for moment_s, change, interval in changes:
        passed_s = moment_s - before_s
        threads = {other.thread for other in running.values()}
        at_once[len(threads)] += passed_s
        if len(threads) == 1:
            innermost = max(running.values(), key=lambda other: other.start_s)
            alone[innermost.operation] += passed_s
        before_s = moment_s
        if change > 0:
            running[id(interval)] = interval
        else:
            del running[id(interval)]
    return Occupation(changes[-1][0] - changes[0][0], dict(at_once), dict(alone), dict(total))


def profile(workload: str, *, quick: bool = False) -> tuple[Occupation, str]:
    """Trains two epochs of a workload without validation and profiles the second.

    Returns:
        What the threads did, and the plan that was followed.
    """
    chosen = WORKLOADS[workload]
    overlap_train.configure()
    with tempfile.TemporaryDirectory(prefix="overlap_train-profile-") as directory:
        task = chosen.task(Path(directory), quick=quick)
        data = pipelines.trainer_data(chosen, task, 1)
        del data["validation_data"]
        trainer = overlap_train.Trainer(chosen.model(from_raw=True))
        trainer.fit(**data, epochs=1, verbose=0)
        options = tf.profiler.experimental.ProfilerOptions(host_tracer_level=2, python_tracer_level=0)
        tf.profiler.experimental.start(directory, options)
        trainer.fit(**data, epochs=1, verbose=0)
        tf.profiler.experimental.stop()
        plans = [message for message in trainer.messages if message.startswith("plan")]
        return occupation(_of_steps(list(_intervals(Path(directory))))), " ".join(plans)


def _of_steps(intervals: Sequence[Interval]) -> list[Interval]:
    """The operations between the first and the last call of the function that takes most of the time."""
    calls: dict[str, list[Interval]] = defaultdict(list)
    for interval in intervals:
        if interval.operation.startswith(" __inference"):
            calls[interval.operation].append(interval)
    steps = max(calls.values(), key=lambda runs: sum(run.end_s - run.start_s for run in runs), default=[])
    if not steps:
        return []
    begin_s, end_s = min(run.start_s for run in steps), max(run.end_s for run in steps)
    return [
        interval
        for interval in intervals
        if interval.operation.isidentifier() and begin_s <= interval.start_s and interval.end_s <= end_s
    ]


def _intervals(directory: Path) -> Iterable[Interval]:
    # TensorFlow has no public reader of the profiles that it writes.
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    for path in directory.glob("plugins/profile/*/*.xplane.pb"):
        space = xplane_pb2.XSpace()
        space.ParseFromString(path.read_bytes())
        for plane in space.planes:
            names = {key: metadata.name for key, metadata in plane.event_metadata.items()}
            for line in plane.lines:
                for event in line.events:
                    node, _, operation = names.get(event.metadata_id, "").rpartition(":")
                    # "while/body/add:AddV2" is an operation, "ExecutorState::Process" is not.
                    if not node or node.endswith(":") or operation in _CONTAINERS:
                        continue
                    start_s = line.timestamp_ns * 1e-9 + event.offset_ps * 1e-12
                    yield Interval(operation, line.id, start_s, start_s + event.duration_ps * 1e-12)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workload", choices=list(WORKLOADS), default="mnist")
    parser.add_argument("--quick", action="store_true", help="with less data")
    parser.add_argument("--most", type=int, default=12, help="kinds of operations to show")
    options = parser.parse_args(arguments)
    found, plan = profile(options.workload, quick=options.quick)
    print(plan)
    shares = ", ".join(f"{n}: {s / found.span_s:.1%}" for n, s in sorted(found.at_once_s.items()) if s > 0)
    print(f"{found.span_s:.2f} s; share of the time with so many operations at once: {shares}")
    print("operation                         seconds  of them alone")
    for operation, alone_s in sorted(found.alone_s.items(), key=lambda row: -row[1])[: options.most]:
        print(f"{operation:32} {found.total_s[operation]:8.3f} {alone_s:8.3f}  {alone_s / found.span_s:6.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
