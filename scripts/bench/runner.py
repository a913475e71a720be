"""Starts each run in a process of its own, watches it from outside and ends it if it takes too long.

Three threads look after a run: the caller's reads what the child says, one samples the load that the
child puts on the machine, one reads what it complains of; a timer kills it. The caller's joins them all.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import psutil

from scripts.bench.child import MARK
from scripts.bench.records import LoadSample, RunRecord, RunSpec
from scripts.bench.systems import SYSTEMS

__all__ = ["ChildFailedError", "LoadSampler", "rotated", "run", "run_job"]

_SAMPLE_INTERVAL_S = 0.2
_MAX_SAMPLES = 400
_COMPLAINT_LINES = 30


class ChildFailedError(Exception):
    """A child process ended without a result; the message says why."""


def run(spec: RunSpec, *, timeout_s: float) -> RunRecord:
    """Returns the record of one run; one that failed or took longer than `timeout_s` says so in `error`."""
    samples: list[LoadSample] = []
    try:
        value = run_job(
            {"job": "train", **asdict(spec)},
            timeout_s=timeout_s,
            environment=SYSTEMS[spec.system].environment,
            samples=samples,
        )
    except ChildFailedError as error:
        return RunRecord.failed(spec, str(error))
    begin_s, end_s = value["begin_s"], value["end_s"]
    timed = [replace(s, time_s=s.time_s - begin_s) for s in samples if begin_s <= s.time_s <= end_s]
    every = -(-len(timed) // _MAX_SAMPLES) or 1
    return replace(RunRecord.from_json(value["record"]), load=tuple(timed[::every]))


def _start(job: dict[str, Any], environment: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", f"{__package__}.child", json.dumps(job)],
        stdin=subprocess.PIPE,  # its end tells the child that this process is gone, killed or not
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **environment},
        text=True,
        start_new_session=True,  # so that whatever it starts ends with it
    )


def run_job(
    job: dict[str, Any],
    *,
    timeout_s: float,
    environment: Any = None,
    samples: list[LoadSample] | None = None,
) -> Any:
    """Runs one job of `child` in a fresh process and returns its result.

    Args:
        job: what the child reads as JSON.
        timeout_s: after so many seconds the child is killed.
        environment: variables in addition to those of this process.
        samples: filled with the load, at times of `time.monotonic()`.

    Raises:
        ChildFailedError: no result came.
    """
    process = _start(job, environment or {})
    complaints: deque[str] = deque(maxlen=_COMPLAINT_LINES)
    listener = threading.Thread(
        target=_drain, args=(process.stderr or (), complaints), name="benchmark-stderr"
    )
    expired = threading.Event()

    def expire() -> None:
        expired.set()
        _kill(process)

    timer = threading.Timer(timeout_s, expire)
    timer.name = "benchmark-watchdog"
    result: list[Any] = []
    with process:
        listener.start()
        timer.start()
        try:
            with LoadSampler(process.pid) if samples is not None else contextlib.nullcontext() as sampler:
                result = list(_messages(process.stdout or ()))
                process.wait()
            if samples is not None and sampler is not None:
                samples.extend(sampler.samples)
        finally:
            timer.cancel()
            _kill(process)
            timer.join()
            listener.join()
    if expired.is_set():
        raise ChildFailedError(f"it took longer than {timeout_s:g} s and was ended")
    if process.returncode != 0 or not result:
        raise ChildFailedError(_reason(complaints, process.returncode))
    return result[-1]


def rotated(names: Sequence[Any], by: int) -> list[Any]:
    """Returns `names` beginning at place `by`, so that no system always runs first or last."""
    if not names:
        return []
    by %= len(names)
    return [*names[by:], *names[:by]]


class LoadSampler:
    """A thread that samples the load of another process until it is closed. A context manager."""

    def __init__(self, pid: int, *, interval_s: float = _SAMPLE_INTERVAL_S) -> None:
        self.samples: list[LoadSample] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=_sample_until,
            args=(self._stop, pid, interval_s, self.samples),
            name="benchmark-sampler",
            daemon=True,
        )
        self._thread.start()

    def close(self) -> None:
        """Ends the thread; `samples` is complete afterwards."""
        self._stop.set()
        self._thread.join()

    def __enter__(self) -> LoadSampler:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _sample_until(stop: threading.Event, pid: int, interval_s: float, samples: list[LoadSample]) -> None:
    gpus = _gpu_meter()
    try:
        process = psutil.Process(pid)
        process.cpu_percent()  # begins the first interval
        while not stop.wait(interval_s):
            percent = process.cpu_percent()
            samples.append(LoadSample(time.monotonic(), percent, gpus()))
    except psutil.Error:
        return  # it has ended


def _gpu_meter() -> Callable[[], tuple[float, ...]]:
    try:
        import gpustat

        gpustat.new_query()
    except Exception:  # no driver, no GPU or no library: each has a type of its own
        return lambda: ()
    return lambda: tuple(float(gpu.utilization or 0) for gpu in gpustat.new_query())


def _messages(stream: Iterable[str]) -> Iterator[Any]:
    for line in stream:
        if line.startswith(MARK):
            yield json.loads(line[len(MARK) :])


def _drain(stream: Iterable[str], lines: deque[str]) -> None:
    for line in stream:
        lines.append(line.rstrip())


def _kill(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _reason(complaints: Sequence[str], returncode: int) -> str:
    """Returns the last line of a traceback, if there is one, and how the process ended."""
    said = [line for line in complaints if line and not line.startswith((" ", "W0000", "I0000", "E0000"))]
    ending = f"exit status {returncode}" if returncode >= 0 else f"signal {-returncode}"
    return f"{said[-1][:300]} ({ending})" if said else ending
