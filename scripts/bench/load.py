"""Synthetic load next to the scheduler, with the load achieved.

    with SpinLoad(0.6, cores=1) as load:
        ...
    print(load.achieved)

Each generator owns its thread or processes and ends them on `close`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

__all__ = ["DutyCycle", "GpuLoad", "SpinLoad"]

_SPIN = """
import sys, time
duty, period = float(sys.argv[1]), float(sys.argv[2])
print("ready", flush=True)
while True:
    end = time.perf_counter() + duty * period
    while time.perf_counter() < end:
        pass
    time.sleep((1 - duty) * period)
"""


class _Closing:
    """A context manager that closes."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SpinLoad(_Closing):
    """Occupies CPU cores for a share of the time, one process each (so without our GIL)."""

    def __init__(self, duty: float, *, cores: int = 1, period_s: float = 0.01) -> None:
        _check_duty(duty)
        if cores < 1:
            raise ValueError(f"cores must be at least 1, got {cores}")
        command = [sys.executable, "-c", _SPIN, str(duty), str(period_s)]
        self._children = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(cores)]
        for child in self._children:
            assert child.stdout is not None
            child.stdout.readline()
        self._began_s = time.monotonic()
        self._began_cpu_s = sum(_cpu_s(child.pid) for child in self._children)
        self._achieved: float | None = None

    @property
    def achieved(self) -> float:
        """CPU time taken on each core as a share of the time since the start; final once closed."""
        if self._achieved is not None:
            return self._achieved
        used_s = sum(_cpu_s(child.pid) for child in self._children) - self._began_cpu_s
        return used_s / max(time.monotonic() - self._began_s, 1e-9) / len(self._children)

    def close(self) -> None:
        """Ends the processes. May be called again."""
        if self._achieved is None:
            self._achieved = self.achieved
        for child in self._children:
            child.kill()
            child.wait()
            if child.stdout is not None:
                child.stdout.close()


class DutyCycle(_Closing):
    """Calls `work` again and again from one thread so that it is inside it for a share of the time.

    `work` should take a few milliseconds and end only when the device is done with it; what it raises is
    raised by `close`, once.
    """

    def __init__(self, duty: float, work: Callable[[], object]) -> None:
        _check_duty(duty)
        self._duty, self._work = duty, work
        self._stop = threading.Event()
        self._busy_s = 0.0
        self._began_s = time.monotonic()
        self._ended_s: float | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="duty-cycle", daemon=True)
        self._thread.start()

    @property
    def achieved(self) -> float:
        """The share of time spent inside `work` so far, or until closed."""
        return self._busy_s / max((self._ended_s or time.monotonic()) - self._began_s, 1e-9)

    def close(self) -> None:
        """Ends the thread. May be called again."""
        self._stop.set()
        self._thread.join()
        self._ended_s = self._ended_s or time.monotonic()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                began_s = time.monotonic()
                if self._duty > 0:
                    self._work()
                took_s = time.monotonic() - began_s
                self._busy_s += took_s
                idle_s = took_s * (1 - self._duty) / self._duty if self._duty else 0.01
                self._stop.wait(idle_s)
        except BaseException as error:
            self._error = error


class GpuLoad(DutyCycle):
    """Occupies a share of a GPU's multiprocessors for a share of the time. Not run without a GPU.

    A product of matrices of 128 rows for each multiprocessor to occupy keeps about that many busy:
    cuBLAS gives each tile of 128 by 128 values of the result to one thread block.
    """

    def __init__(self, duty: float, *, multiprocessors: int = 8, device: str = "GPU:0") -> None:
        import tensorflow as tf

        if device not in {d.name.split("/device:")[-1] for d in tf.config.list_logical_devices()}:
            raise ValueError(f"TensorFlow has no device {device!r}")
        with tf.device(device):
            left = tf.random.stateless_normal((128 * multiprocessors, 2048), (0, 0))
            right = tf.random.stateless_normal((2048, 128), (0, 1))
        self.multiprocessors = multiprocessors

        def product() -> object:
            with tf.device(device):
                result = left
                for _ in range(8):
                    result = tf.matmul(tf.matmul(result, right), right, transpose_b=True) * 1e-3
                return tf.reduce_sum(result)

        compiled = tf.function(product, autograph=False)
        super().__init__(duty, lambda: compiled().numpy())


def _check_duty(duty: float) -> None:
    if not 0 <= duty <= 1:
        raise ValueError(f"duty must be in 0 to 1, got {duty}")


def _cpu_s(pid: int) -> float:
    """User and system time of a process, 0 where the system does not say."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
