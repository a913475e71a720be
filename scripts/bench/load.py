"""Synthetic load next to the scheduler; after its block it knows the load achieved."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


class DutyCycle:
    """Calls `work` again and again from one thread so that it is inside it for a share of the time.

    `work` should take a few milliseconds and end only when the device is done with it; what it raises is
    raised at the end of the block.
    """

    achieved = 0.0  # the share of time that was spent inside `work`, known at the end

    def __init__(self, duty: float, work: Callable[[], object]) -> None:
        self._duty, self._work = duty, work
        self._stop = threading.Event()
        self._busy_s = 0.0

    def __enter__(self) -> DutyCycle:
        self._began_s = time.monotonic()
        self._thread = ThreadPoolExecutor(1, "duty-cycle")
        self._running = self._thread.submit(self._run)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.shutdown()
        self.achieved = self._busy_s / (time.monotonic() - self._began_s)
        self._running.result()

    def _run(self) -> None:
        while not self._stop.is_set():
            began_s = time.monotonic()
            if self._duty > 0:
                self._work()
            took_s = time.monotonic() - began_s
            self._busy_s += took_s
            self._stop.wait(took_s * (1 - self._duty) / self._duty if self._duty else 0.01)


class GpuLoad(DutyCycle):
    """Occupies a share of a GPU's multiprocessors for a share of the time.

    A product of matrices of 128 rows for each multiprocessor to occupy keeps about that many busy:
    cuBLAS gives each tile of 128 by 128 values of the result to one thread block.
    """

    def __init__(self, duty: float, *, multiprocessors: int = 8, device: str = "GPU:0") -> None:
        import tensorflow as tf

        with tf.device(device):
            left = tf.random.stateless_normal((128 * multiprocessors, 2048), (0, 0))
            right = tf.random.stateless_normal((2048, 128), (0, 1))

        def product() -> object:
            with tf.device(device):
                result = left
                for _ in range(8):
                    result = tf.matmul(tf.matmul(result, right), right, transpose_b=True) * 1e-3
                return tf.reduce_sum(result)

        compiled = tf.function(product, autograph=False)
        super().__init__(duty, lambda: compiled().numpy())
