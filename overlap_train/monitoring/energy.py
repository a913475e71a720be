"""Energy that NVIDIA GPUs take, by their own counters (NVML: Volta and newer, since the driver was loaded).

No power is ever guessed from a data sheet. The counters tick every 10 to 100 ms and the consumption of an
idle card drifts, so a window is at least ten seconds long: `measure` repeats the work until it is, and
subtracts what the idle cards take, measured over an equal window before.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

_WINDOW_S = 10.0


@dataclass(frozen=True, slots=True)
class EnergyReading:
    """Energy that all GPUs took while some work was repeated."""

    runs: int
    seconds: float  # of the window
    total_j: float
    idle_w: float  # of the idle cards just before
    net_j: float  # `total_j` less the idle cards' share; negative if the difference drowns in noise

    @property
    def net_mwh_per_run(self) -> float:
        """Milliwatt hours for one run, the unit of P3."""
        return self.net_j / self.runs / 3.6


def gpu_joules() -> float:
    """Return the joules that all GPUs have counted so far, or raise RuntimeError if none counts."""
    try:
        import pynvml
    except ImportError as error:
        raise RuntimeError("no GPU counts its energy here: nvidia-ml-py is not installed") from error
    try:
        pynvml.nvmlInit()
        handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
        millijoules = [pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) for handle in handles]
    except pynvml.NVMLError as error:
        raise RuntimeError(f"no GPU counts its energy here: {error}") from error
    if not millijoules:
        raise RuntimeError("no GPU counts its energy here: the driver shows none")
    return float(sum(millijoules)) / 1e3


def measure(work: Callable[[], object]) -> EnergyReading:
    """Measure the energy of some work beyond that of the idle GPUs.

    They idle for one window, then the work is repeated for another one. `work` must return only when the
    device is done, too. Without a counter it is not run, and RuntimeError says why.
    """

    def window(work: Callable[[], object], least_s: float) -> tuple[int, float, float]:
        """Repeat work until `least_s` are over; return the runs, the seconds and the joules."""
        before_j, begin_s, runs, seconds = gpu_joules(), time.monotonic(), 0, 0.0
        while runs == 0 or seconds < least_s:
            work()
            runs, seconds = runs + 1, time.monotonic() - begin_s
        return runs, seconds, gpu_joules() - before_j

    _, idle_s, idle_j = window(lambda: time.sleep(_WINDOW_S), 0.0)
    runs, seconds, total_j = window(work, _WINDOW_S)
    idle_w = idle_j / idle_s
    return EnergyReading(runs, seconds, total_j, idle_w, total_j - idle_w * seconds)
