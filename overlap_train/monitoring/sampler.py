"""Samples the load of this process and of the machine's GPUs on a thread of its own.

The sampling thread owns the meters and is the only one that appends to a deque, whose copy is one step for
readers. The thread's body holds the deque and the stop event but not the `Sampler`, so that a forgotten
sampler is collected, warns, and takes its thread with it.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable

import psutil

from overlap_train._support.arguments import require_callable, require_count, require_seconds
from overlap_train._support.closing import Closing
from overlap_train._support.threads import start
from overlap_train.records import Sample

_logger = logging.getLogger(__name__)
_MIB = 1 << 20
_gpu_given_up = threading.Event()  # for the whole process, so that the reason is logged once


class LoadMeter:
    """Read the load at the moment of a call. Use it from one thread."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._process.cpu_percent()  # begins the first interval; its own value means nothing

    def __call__(self) -> Sample:
        """Return the CPU load since the previous call, and the current memory and GPU load.

        With GPUs a call takes about 0.1 s for each, because gpustat sleeps in its query.
        """
        time_s = time.monotonic()
        cpu_percent = self._process.cpu_percent()
        rss_bytes = self._process.memory_info().rss
        gpu_percent, gpu_memory_bytes = _read_gpus()
        return Sample(time_s, cpu_percent, rss_bytes, gpu_percent, gpu_memory_bytes)


class Sampler(Closing):
    """Read the load every `interval_s` seconds on a thread of its own, until closed.

    Memory is bounded: beyond `max_samples` the oldest go. Give a longer interval for a run of days.

    Methods may be called from any thread. Sampling starts on construction:

        with Sampler() as sampler:
            ...
        sampler.samples()
    """

    def __init__(
        self,
        interval_s: float = 0.2,
        max_samples: int = 1 << 18,
        *,
        meter: Callable[[], Sample] | None = None,
    ) -> None:
        """Start sampling.

        Args:
            interval_s: seconds between two samples.
            max_samples: the largest number of samples, about 200 bytes each.
            meter: reads one sample, on the sampling thread; a `LoadMeter` by default.

        Raises:
            TypeError: an argument has the wrong type.
            ValueError: `interval_s` is not a positive finite number, or `max_samples` is below 1.
        """
        interval_s = require_seconds("interval_s", interval_s)
        max_samples = require_count("max_samples", max_samples, minimum=1)
        require_callable("meter", meter, optional=True)
        self._stop = threading.Event()
        self._samples: deque[Sample] = deque(maxlen=max_samples)
        self._thread = threading.Thread(
            target=_sample_until,
            args=(self._stop, self._samples, interval_s, LoadMeter() if meter is None else meter),
            name="overlap_train-sampler",
            daemon=True,
        )
        try:
            start(self._thread)
        except BaseException:
            self._stop.set()  # there is nothing to close
            raise

    def samples(self) -> tuple[Sample, ...]:
        """Return the samples so far, oldest first. May be called after `close`."""
        return tuple(self._samples.copy())

    def close(self) -> None:
        """Take a last sample and end the thread; does nothing the second time."""
        self._stop.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def __del__(self) -> None:
        stop = getattr(self, "_stop", None)  # absent where __init__ refused its arguments
        if stop is not None and not stop.is_set():
            stop.set()
            warnings.warn(
                "Sampler was not closed; use it in a with statement",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )


def _sample_until(
    stop: threading.Event, samples: deque[Sample], interval_s: float, meter: Callable[[], Sample]
) -> None:
    """The sampling thread. A meter that fails ends the sampling, never the run."""
    try:
        began_s = time.monotonic()
        while not stop.wait(max(0.0, interval_s - (time.monotonic() - began_s))):
            began_s = time.monotonic()
            samples.append(meter())
        # The kernel counts CPU time in ticks of 10 ms: over a short rest the percentage would be noise.
        if time.monotonic() - began_s >= interval_s / 2:
            samples.append(meter())
    except Exception:
        _logger.warning("Sampling of the load stopped at an error", exc_info=True)


def _read_gpus() -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Return the utilisation in percent (NaN where the driver gives none) and the bytes in use, per GPU.

    After a failure or without GPUs, later calls in this process return nothing at once.
    """
    if _gpu_given_up.is_set():
        return (), ()
    level = logging.WARNING
    try:
        import gpustat

        gpus = [dict(gpu) for gpu in gpustat.new_query()]
        reason = "" if gpus else "the driver lists none"
    except Exception as error:  # NVML has a class for each of its codes; ImportError without gpustat
        gpus, reason = [], f"{type(error).__name__}: {error}"
        if type(error).__name__ == "NVMLError_LibraryNotFound":  # no driver: nobody expects a GPU here
            level = logging.INFO
    if not gpus:
        _gpu_given_up.set()
        _logger.log(level, "No GPU is sampled (%s); the load of the CPU still is", reason)
    percents = (gpu.get("utilization.gpu") for gpu in gpus)
    return (
        tuple(math.nan if percent is None else float(percent) for percent in percents),
        tuple((gpu.get("memory.used") or 0) * _MIB for gpu in gpus),
    )
