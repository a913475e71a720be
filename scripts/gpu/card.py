"""What a card does while something runs: how busy it is, the energy that it takes, its memory."""

from __future__ import annotations

import os
import statistics
import threading
from typing import Any

from overlap_train.monitoring.energy import gpu_joules

__all__ = ["Meter", "peak_mib", "total_mib"]

_SAMPLE_S = 0.05
_MIB = 1 << 20


class Meter:
    """Samples NVML from a thread of its own; `row` is read after the end, and empty without a card."""

    def __init__(self) -> None:
        self._busy: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpu-meter", daemon=True)
        self._before_j = self._joules = _counted_j()

    def __enter__(self) -> Meter:
        self._before_j = _counted_j()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._joules = _counted_j()

    @property
    def row(self) -> dict[str, float]:
        """How busy the card was, in percent, and the watt hours of all cards, idle power included."""
        busy = {"gpu_percent": statistics.fmean(self._busy)} if self._busy else {}
        if self._before_j is None or self._joules is None:
            return busy
        return busy | {"energy_wh": (self._joules - self._before_j) / 3600}

    def _run(self) -> None:
        if self._before_j is None:
            return
        import pynvml

        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        while not self._stop.wait(_SAMPLE_S):
            self._busy.append(float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu))


def _counted_j() -> float | None:
    try:
        return gpu_joules()
    except RuntimeError:
        return None


def total_mib() -> int:
    """Return the memory of the first card."""
    import pynvml

    pynvml.nvmlInit()
    return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).total) // _MIB


def peak_mib() -> dict[str, Any]:
    """Return the most memory that this process's tensors took on the card at once; empty without a card."""
    if os.environ.get("KERAS_BACKEND") == "jax":
        import jax

        peaks = [(device.memory_stats() or {}).get("peak_bytes_in_use") for device in jax.local_devices()]
    else:
        import tensorflow as tf

        names = [device.name.removeprefix("/device:") for device in tf.config.list_logical_devices("GPU")]
        peaks = [tf.config.experimental.get_memory_info(name)["peak"] for name in names]
    known = [peak for peak in peaks if peak]
    return {"peak_mib": sum(known) // _MIB} if known else {}
