"""Which card, and what is installed beside it."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from scripts.gpu.record import write_atomically

__all__ = ["card_name", "facts", "results_directory", "slug"]

EMULATED = "emulated"
_MACHINE = "machine.json"


def card_name(*, emulate: bool) -> str:
    """Return what the driver calls the first GPU.

    Raises:
        RuntimeError: the driver shows none.
    """
    if emulate:
        return EMULATED
    if shutil.which("nvidia-smi") is None:
        raise RuntimeError("nvidia-smi is not on the path, so there is no GPU here; rehearse with --emulate")
    name = _output("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").splitlines()
    if not name:
        raise RuntimeError("nvidia-smi shows no GPU; rehearse with --emulate")
    return name[0].strip()


def slug(card: str) -> str:
    """Return the card's name for use in a file's name."""
    return re.sub(r"[^a-z0-9]+", "-", card.lower()).strip("-")


def facts(
    card: str, *, emulate: bool, packages: Sequence[str] = ("torch", "cupy-cuda13x", "numpy")
) -> dict[str, str]:
    """Return what figures depend on: the card, its driver, compilers, packages of this process."""
    known = {"GPU": "none: emulated on a CPU" if emulate else card}
    if not emulate:
        query = "driver_version,memory.total,clocks.max.sm,power.limit"
        known["driver, memory, clock, power limit"] = _output(
            "nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"
        ).strip()
    release = re.search(r"release ([\d.]+)", _output("nvcc", "--version"))
    known["nvcc"] = release[1] if release else "none"
    for package in packages:
        try:
            known[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    known["Python"] = platform.python_version()
    known["cores"] = str(os.cpu_count())
    return known


def results_directory(output: Path, card: str, *, again: bool) -> Path:
    """Return the folder of this card's results: the newest that is there, or a new one of today.

    Args:
        output: holds one folder for each date and card, and next to it the page of the same name.
        card: its name.
        again: whether to begin a new one unless there is one of today.
    """
    earlier = sorted(path.parent for path in output.glob(f"*-{slug(card)}/{_MACHINE}"))
    if earlier and not again:
        return earlier[-1]
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    directory = output / f"{today}-{slug(card)}"
    directory.mkdir(parents=True, exist_ok=True)
    write_atomically(directory / _MACHINE, json.dumps({"card": card}) + "\n")
    return directory


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
