"""Energy that the machine's own counters measured, and "unavailable" with the reason where it has none.

    NVML     energy of each NVIDIA GPU since the driver was loaded (Volta and newer), in mJ
    RAPL     energy of each CPU package, from the kernel's powercap interface, in µJ, wrapping around
    Jetson   power of each supply rail, from its INA3221 sensors, in mW: sampled here and integrated

No power is ever guessed from a data sheet. Counters tick every 10 to 100 ms and the machine's own consumption
drifts, so that a window is at least ten seconds long; `measure` repeats the work until it is, and subtracts
what the idle machine takes, measured over an equal window before.

A counter and a measurement belong to the thread that made them; the sampler of the Jetson rails is a thread
of its own, which hands over one number under its lock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

__all__ = [
    "MINIMUM_WINDOW_S",
    "EnergyCounter",
    "EnergyReading",
    "JetsonRails",
    "Nvml",
    "Rapl",
    "Unavailable",
    "find_counters",
    "measure",
]

MINIMUM_WINDOW_S = 10.0
_SAMPLE_S = 0.01
_STOP_TIMEOUT_S = 5.0
_POWERCAP = Path("/sys/class/powercap")
_HWMON = Path("/sys/class/hwmon")


@dataclass(frozen=True, slots=True)
class Unavailable:
    """Says why a machine cannot measure energy with one kind of counter.

    Attributes:
        source: "NVML", "RAPL" or "Jetson".
        reason: what is missing, and where known what to do.
    """

    source: str
    reason: str


@dataclass(frozen=True, slots=True)
class EnergyReading:
    """Energy that one counter measured.

    Attributes:
        source: which counter, such as "RAPL package-0".
        runs: how often the work was done.
        seconds: length of the window.
        total_j: joules of the window, everything that the counter covers included.
        idle_w: watts of the idle machine just before.
        net_j: `total_j` less the idle machine's share; negative if the difference drowns in noise.
    """

    source: str
    runs: int
    seconds: float
    total_j: float
    idle_w: float
    net_j: float

    @property
    def net_mwh_per_run(self) -> float:
        """Milliwatt hours for one run, the unit of P3."""
        return self.net_j / self.runs / 3.6


class EnergyCounter(Protocol):
    """A counter that only grows.

    Attributes:
        source: what it counts, in words.
    """

    source: str

    def read_j(self) -> float:
        """Returns joules since some fixed moment."""
        ...

    def close(self) -> None:
        """Lets go of threads and handles; idempotent."""
        ...


class Nvml:
    """Energy of one NVIDIA GPU."""

    def __init__(self, index: int, nvml: Any) -> None:
        self._nvml = nvml
        self._handle = nvml.nvmlDeviceGetHandleByIndex(index)
        self.source = f"NVML GPU {index}"
        self.read_j()

    def read_j(self) -> float:
        return float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)) / 1e3

    def close(self) -> None:
        pass


class Rapl:
    """Energy of one CPU package.

    Args:
        zone: a directory of powercap with `energy_uj` and `max_energy_range_uj`.

    Raises:
        OSError: if it cannot be read.
    """

    def __init__(self, zone: Path) -> None:
        self._file = zone / "energy_uj"
        self._range_uj = int((zone / "max_energy_range_uj").read_text())
        self._last_uj = int(self._file.read_text())
        self._sum_uj = 0
        self.source = f"RAPL {(zone / 'name').read_text().strip()}"

    def read_j(self) -> float:
        """Returns joules since this object was made; call it at least once in each wrap-around (minutes)."""
        now = int(self._file.read_text())
        self._sum_uj += (now - self._last_uj) % (self._range_uj + 1)
        self._last_uj = now
        return self._sum_uj / 1e6

    def close(self) -> None:
        pass


class JetsonRails:
    """Energy of a Jetson's supply, as the integral of its sensors' power, sampled every 10 ms.

    Args:
        rail: the name for the source.
        read_w: returns the power of the moment in watts.
        clock: returns seconds; for tests.
    """

    def __init__(
        self, rail: str, read_w: Callable[[], float], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.source = f"Jetson {rail}"
        self._read_w = read_w
        self._clock = clock
        self._lock = threading.Lock()
        self._joules = 0.0
        self._last_s, self._last_w = clock(), read_w()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, name=f"energy-{rail}", daemon=True)
        self._thread.start()

    def read_j(self) -> float:
        """Returns joules since this object was made."""
        self._advance()
        with self._lock:
            return self._joules

    def close(self) -> None:
        self._stop.set()
        self._thread.join(_STOP_TIMEOUT_S)

    def _sample(self) -> None:
        while not self._stop.wait(_SAMPLE_S):
            self._advance()

    def _advance(self) -> None:
        with self._lock:
            now_s, now_w = self._clock(), self._read_w()
            self._joules += (now_s - self._last_s) * (now_w + self._last_w) / 2
            self._last_s, self._last_w = now_s, now_w


class _Counters:
    """Closes counters at the end of a with statement."""

    def __init__(self, counters: Sequence[EnergyCounter]) -> None:
        self._counters = counters

    def __enter__(self) -> Sequence[EnergyCounter]:
        return self._counters

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for counter in self._counters:
            counter.close()


def find_counters(
    *, powercap: Path = _POWERCAP, hwmon: Path = _HWMON
) -> tuple[list[EnergyCounter], list[Unavailable]]:
    """Returns the counters of this machine, and for each kind that it lacks the reason.

    Close each counter after use. The arguments are for tests.
    """
    counters: list[EnergyCounter] = []
    missing: list[Unavailable] = []
    for find in (_find_nvml, lambda: _find_rapl(powercap), lambda: _find_jetson(hwmon)):
        found = find()
        if isinstance(found, Unavailable):
            missing.append(found)
        else:
            counters += found
    return counters, missing


def measure(
    work: Callable[[], object],
    *,
    window_s: float = MINIMUM_WINDOW_S,
    counters: Sequence[EnergyCounter] | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[list[EnergyReading], list[Unavailable]]:
    """Measures what some work costs beyond the idle machine.

    The machine idles for one window, then the work is repeated for another one.

    Args:
        work: does one run, and returns when it is done, on the device too.
        window_s: at least `MINIMUM_WINDOW_S`.
        counters: those to read, which stay open; all of this machine if None.
        clock: returns seconds; for tests.
        sleep: waits for some seconds; for tests.

    Returns:
        A reading of each counter, and for each kind of counter that the machine lacks the reason. Where there
        is no counter at all the work is not run.

    Raises:
        ValueError: if the window is too short.
    """
    if not window_s >= MINIMUM_WINDOW_S:
        raise ValueError(f"window_s must be at least {MINIMUM_WINDOW_S}, got {window_s}: counters are coarse")
    if counters is not None:
        return _measure(work, window_s, counters, clock, sleep), []
    found, missing = find_counters()
    with _Counters(found):
        return _measure(work, window_s, found, clock, sleep), missing


def _measure(
    work: Callable[[], object],
    window_s: float,
    counters: Sequence[EnergyCounter],
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> list[EnergyReading]:
    if not counters:
        return []
    idle_s, idle_j = _window(lambda: sleep(window_s), 0.0, counters, clock)[1:]
    runs, seconds, joules = _window(work, window_s, counters, clock)
    return [
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


def _window(
    work: Callable[[], object],
    window_s: float,
    counters: Sequence[EnergyCounter],
    clock: Callable[[], float],
) -> tuple[int, float, list[float]]:
    """Repeats work until a window is over; returns the runs, the seconds and the joules of each counter."""
    before = [counter.read_j() for counter in counters]
    begin, runs = clock(), 0
    while True:
        work()
        runs += 1
        seconds = clock() - begin
        if seconds >= window_s:
            break
    return runs, seconds, [counter.read_j() - old for counter, old in zip(counters, before, strict=True)]


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


def _find_jetson(hwmon: Path) -> list[EnergyCounter] | Unavailable:
    counters: list[EnergyCounter] = []
    for sensor in sorted(hwmon.glob("hwmon*")):
        try:
            if (sensor / "name").read_text().strip() != "ina3221":
                continue
            for label in sorted(sensor.glob("in*_label")):
                channel = label.name[len("in") : -len("_label")]
                if (sensor / f"curr{channel}_input").exists():
                    counters.append(JetsonRails(label.read_text().strip(), _rail(sensor, channel)))
        except (OSError, ValueError) as error:
            for counter in counters:
                counter.close()
            return Unavailable("Jetson", f"{sensor} cannot be read: {error}")
    return counters or Unavailable("Jetson", f"{hwmon} has no INA3221 sensor")


def _rail(sensor: Path, channel: str) -> Callable[[], float]:
    millivolts, milliamperes = sensor / f"in{channel}_input", sensor / f"curr{channel}_input"

    def read_w() -> float:
        return int(millivolts.read_text()) * int(milliamperes.read_text()) / 1e6

    read_w()
    return read_w
