"""Energy that the machine's own counters measured, and the reason for each kind that it lacks.

    NVML  energy of each NVIDIA GPU since the driver was loaded (Volta and newer), in mJ
    RAPL  energy of each CPU package, from the kernel's powercap interface, in µJ, wrapping around

No power is ever guessed from a data sheet. Counters tick every 10 to 100 ms and the machine's own consumption
drifts, so that a window is at least ten seconds long; `measure` repeats the work until it is, and subtracts
what the idle machine takes, measured over an equal window before.

A measurement and its counters belong to the thread that made them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

__all__ = [
    "MINIMUM_WINDOW_S",
    "EnergyCounter",
    "EnergyReading",
    "Nvml",
    "Rapl",
    "Unavailable",
    "find_counters",
    "measure",
]

MINIMUM_WINDOW_S = 10.0
_POWERCAP = Path("/sys/class/powercap")


@dataclass(frozen=True, slots=True)
class EnergyReading:
    """Energy that one counter measured."""

    source: str  # such as "RAPL package-0"
    runs: int
    seconds: float  # of the window
    total_j: float  # of everything that the counter covers
    idle_w: float  # of the idle machine just before
    net_j: float  # `total_j` less the idle machine's share; negative if the difference drowns in noise

    @property
    def net_mwh_per_run(self) -> float:
        """Milliwatt hours for one run, the unit of P3."""
        return self.net_j / self.runs / 3.6


@dataclass(frozen=True, slots=True)
class Unavailable:
    """Why a machine cannot measure energy with one kind of counter, "NVML" or "RAPL"."""

    source: str
    reason: str  # what is missing, and what to do about it if that is known


class EnergyCounter(Protocol):
    """A counter that only grows."""

    source: str

    def read_j(self) -> float:
        """Return joules since a fixed moment."""
        ...


class Nvml:
    """Energy of one NVIDIA GPU."""

    def __init__(self, index: int, nvml: Any) -> None:
        self._nvml = nvml
        self._handle = nvml.nvmlDeviceGetHandleByIndex(index)
        self.source = f"NVML GPU {index}"
        self.read_j()

    def read_j(self) -> float:
        """Return the joules counted so far."""
        return float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)) / 1e3


class Rapl:
    """Energy of one CPU package: of a directory of powercap with `energy_uj` and `max_energy_range_uj`."""

    def __init__(self, zone: Path) -> None:
        self._file = zone / "energy_uj"
        self._range_uj = int((zone / "max_energy_range_uj").read_text())
        self._last_uj = int(self._file.read_text())
        self._sum_uj = 0
        self.source = f"RAPL {(zone / 'name').read_text().strip()}"

    def read_j(self) -> float:
        """Return joules since this object was made; call it at least once in each wrap-around (minutes)."""
        now = int(self._file.read_text())
        self._sum_uj += (now - self._last_uj) % (self._range_uj + 1)
        self._last_uj = now
        return self._sum_uj / 1e6


def find_counters(*, powercap: Path = _POWERCAP) -> tuple[list[EnergyCounter], list[Unavailable]]:
    """Return the counters of this machine, and for each kind that it lacks the reason."""
    counters: list[EnergyCounter] = []
    missing: list[Unavailable] = []
    for result in (_find_nvml(), _find_rapl(powercap)):
        if isinstance(result, Unavailable):
            missing.append(result)
        else:
            counters += result
    return counters, missing


def _find_nvml() -> list[EnergyCounter] | Unavailable:
    try:
        import pynvml
    except ImportError:
        return Unavailable("NVML", "the package nvidia-ml-py is not installed")
    try:
        pynvml.nvmlInit()
        counters: list[EnergyCounter] = [Nvml(index, pynvml) for index in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError as error:
        return Unavailable("NVML", str(error))
    return counters or Unavailable("NVML", "the driver shows no GPU")


def _find_rapl(powercap: Path) -> list[EnergyCounter] | Unavailable:
    # Zones with two numbers are parts of a package, whose energy would be counted twice.
    zones = [zone for zone in sorted(powercap.glob("*rapl*:*")) if zone.name.count(":") == 1]
    if not zones:
        return Unavailable("RAPL", f"{powercap} has no RAPL zone: a virtual machine, or a kernel without it")
    try:
        return [Rapl(zone) for zone in zones]
    except PermissionError:
        return Unavailable(
            "RAPL", f"{zones[0] / 'energy_uj'} is readable by root only: run as root, or chmod it"
        )
    except (OSError, ValueError) as error:
        return Unavailable("RAPL", f"{zones[0]} cannot be read: {error}")


def measure(
    work: Callable[[], object],
    *,
    window_s: float = MINIMUM_WINDOW_S,
    counters: Sequence[EnergyCounter] | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[list[EnergyReading], list[Unavailable]]:
    """Measure the energy of some work beyond that of the idle machine.

    The machine idles for one window, then the work is repeated for another one. `work` must not return before
    the device is done. Without a counter it is not run.
    """
    if not window_s >= MINIMUM_WINDOW_S:
        raise ValueError(f"window_s must be at least {MINIMUM_WINDOW_S}, got {window_s}: counters are coarse")
    missing: list[Unavailable] = []
    if counters is None:
        counters, missing = find_counters()
    if not counters:
        return [], missing
    _, idle_s, idle_j = _window(lambda: sleep(window_s), 0.0, counters, clock)
    runs, seconds, joules = _window(work, window_s, counters, clock)
    readings = [
        EnergyReading(
            source=counter.source,
            runs=runs,
            seconds=seconds,
            total_j=total_j,
            idle_w=baseline_j / idle_s,
            net_j=total_j - baseline_j / idle_s * seconds,
        )
        for counter, total_j, baseline_j in zip(counters, joules, idle_j, strict=True)
    ]
    return readings, missing


def _window(
    work: Callable[[], object],
    window_s: float,
    counters: Sequence[EnergyCounter],
    clock: Callable[[], float],
) -> tuple[int, float, list[float]]:
    """Repeat work until a window is over; returns the runs, the seconds and the joules of each counter."""
    before = [counter.read_j() for counter in counters]
    begin, runs, seconds = clock(), 0, 0.0
    while runs == 0 or seconds < window_s:
        work()
        runs += 1
        seconds = clock() - begin
    return runs, seconds, [counter.read_j() - old for counter, old in zip(counters, before, strict=True)]
