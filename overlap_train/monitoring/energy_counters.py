"""The machine's own counters of energy, and for each kind that it lacks the reason.

    NVML     energy of each NVIDIA GPU since the driver was loaded (Volta and newer), in mJ
    RAPL     energy of each CPU package, from the kernel's powercap interface, in µJ, wrapping around
    Jetson   power of each supply rail, from its INA3221 sensors, in mW: sampled here and integrated

A counter belongs to the thread that made it; the sampler of the Jetson rails is a thread of its own, which
hands over one number under its lock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from overlap_train._support.threads import start

__all__ = ["EnergyCounter", "JetsonRails", "Nvml", "Rapl", "Unavailable", "find_counters"]

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


class EnergyCounter(Protocol):
    """A counter that only grows.

    Attributes:
        source: what it counts, in words.
    """

    source: str

    def read_j(self) -> float:
        """Return joules since some fixed moment."""
        ...

    def close(self) -> None:
        """Let go of threads and handles; idempotent."""
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

    def close(self) -> None:
        """Let go of the counter; idempotent."""


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
        """Return joules since this object was made; call it at least once in each wrap-around (minutes)."""
        now = int(self._file.read_text())
        self._sum_uj += (now - self._last_uj) % (self._range_uj + 1)
        self._last_uj = now
        return self._sum_uj / 1e6

    def close(self) -> None:
        """Let go of the counter; idempotent."""


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
        self._thread = start(threading.Thread(target=self._sample, name=f"energy-{rail}", daemon=True))

    def read_j(self) -> float:
        """Return joules since this object was made."""
        self._advance()
        with self._lock:
            return self._joules

    def close(self) -> None:
        """Let go of the counter; idempotent."""
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


def find_counters(
    *, powercap: Path = _POWERCAP, hwmon: Path = _HWMON
) -> tuple[list[EnergyCounter], list[Unavailable]]:
    """Return the counters of this machine, and for each kind that it lacks the reason.

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
