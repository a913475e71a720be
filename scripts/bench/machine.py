"""What a comparison ran on, as far as it explains the figures: no names of hosts or users."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

import psutil

from overlap_train.options.threads import available_cores

_PACKAGES = ("overlap_train", "tensorflow", "keras", "numpy", "tensorflow-datasets", "jax", "torch")


def describe() -> dict[str, Any]:
    """Returns CPU, cores, memory, GPUs, system, versions and date, as JSON values."""
    return {
        "cpu": _cpu_model(),
        "cores": available_cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": gpu_names(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in _PACKAGES if _version(name)},
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
    }


def one_line(machine: dict[str, Any]) -> str:
    """Returns the machine in one line, for under a table."""
    gpus = ", ".join(machine["gpus"]) or "no GPU"
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return (
        f"{machine['cores']} cores of {machine['cpu']}, {machine['memory_bytes'] / 2**30:.0f} GiB, {gpus}; "
        f"Python {machine['python']}, {versions}; {machine['date']}"
    )


def gpu_names() -> list[str]:
    """Returns the names of the GPUs that the driver reports, unless they are hidden from this process."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0") in ("", "-1"):
        return []
    try:
        import gpustat

        return [gpu.name for gpu in gpustat.new_query()]
    except Exception:  # no driver, no GPU or no library: each has a type of its own
        return []


def status_bytes(name: str) -> int:
    """Returns an entry of Linux's status of this process, such as VmHWM, its largest resident memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
