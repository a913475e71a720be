"""Synthetic load next to the scheduler, with the load achieved.

    with GpuLoad(0.6) as load:
        ...
    print(load.achieved)

Each owns its thread and ends it on `close`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class DutyCycle:
    """Calls `work` again and again from one thread so that it is inside it for a share of the time.

    `work` should take a few milliseconds and end only when the device is done with it; what it raises is
    raised by `close`, once.
    """

    def __init__(self, duty: float, work: Callable[[], object]) -> None:
        if not 0 <= duty <= 1:
            raise ValueError(f"duty must be in 0 to 1, got {duty}")
        self._duty, self._work = duty, work
        self._stop = threading.Event()
        self._busy_s = 0.0
        self._began_s = time.monotonic()
        self._ended_s: float | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="duty-cycle", daemon=True)
        self._thread.start()

    def __enter__(self) -> DutyCycle:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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
    """Occupies a share of a GPU's multiprocessors for a share of the time.

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
