"""When reading host memory in place beats copying it to the device first.

On a GPU that shares its memory with the CPU it always does. On a discrete GPU it does for small inputs that
are read once; from which size on the copy wins is measured with `crossover.measure` and kept in a file. On
the CPU there is nothing to weigh: making a tensor on an array's memory is quicker than copying at any size
(`scripts/compare_zero_copy.sh` shows it).
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

__all__ = ["Choice", "CrossoverCache", "Mode", "check_mode", "choose"]

Mode = Literal["auto", "copy", "zero_copy"]


@dataclass(frozen=True, slots=True)
class Choice:
    """Whether to share memory, and why.

    Attributes:
        zero_copy: True to share, False to copy.
        reason: the ground, as a clause that can stand behind "because".
    """

    zero_copy: bool
    reason: str


def check_mode(mode: str) -> None:
    """Raises ValueError unless `mode` is one of `Mode`."""
    if mode not in get_args(Mode):
        raise ValueError(f"mode must be one of {', '.join(map(repr, get_args(Mode)))}, got {mode!r}")


def choose(mode: Mode, size_bytes: int, *, integrated: bool, crossover_bytes: int | None) -> Choice:
    """Decides for an input that a GPU reads once.

    Args:
        mode: what the user asked for.
        size_bytes: of the input.
        integrated: whether the GPU shares its memory with the CPU.
        crossover_bytes: the size up to which sharing was measured to be quicker, or None if unmeasured.
    """
    check_mode(mode)
    if mode != "auto":
        return Choice(mode == "zero_copy", f"mode={mode!r} was asked for")
    if integrated:
        return Choice(True, "the GPU shares its memory with the CPU")
    if crossover_bytes is None:
        return Choice(False, "the GPU has its own memory and no crossover has been measured for it")
    if size_bytes <= crossover_bytes:
        return Choice(True, f"{size_bytes} bytes are within the measured crossover of {crossover_bytes}")
    return Choice(False, f"{size_bytes} bytes are beyond the measured crossover of {crossover_bytes}")


class CrossoverCache:
    """Measured crossovers, kept in one JSON file for each user.

    A damaged or unreadable file counts as empty: it holds nothing that cannot be measured again.
    May be used from any thread and, since the file is replaced as a whole, from any process.

    Args:
        path: the file; by default `zero_copy.json` in `$XDG_CACHE_HOME/overlap_train`, or in
            `~/.cache/overlap_train`.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._path = Path(path) if path is not None else _default_path()
        self._lock = threading.Lock()
        self._entries: dict[str, int] | None = None

    def get(self, key: str) -> int | None:
        """Returns the crossover in bytes that was stored for a device, or None."""
        with self._lock:
            if self._entries is None:
                self._entries = self._read()
            return self._entries.get(key)

    def put(self, key: str, crossover_bytes: int) -> None:
        """Stores a crossover, at once and atomically.

        Raises:
            OSError: if the file cannot be written; the value holds for this object nevertheless.
        """
        if crossover_bytes < 0:
            raise ValueError(f"crossover_bytes must not be negative, got {crossover_bytes}")
        with self._lock:
            self._entries = {**self._read(), **(self._entries or {}), key: int(crossover_bytes)}
            self._path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self._path.parent, prefix=self._path.name)
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as file:
                    json.dump(self._entries, file, indent=1, sort_keys=True)
                os.replace(name, self._path)
            except BaseException:
                os.unlink(name)
                raise

    def _read(self) -> dict[str, int]:
        try:
            content: Any = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        if not isinstance(content, dict):
            return {}
        return {
            key: value
            for key, value in content.items()
            if isinstance(value, int) and not isinstance(value, bool) and value >= 0
        }


def _default_path() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "overlap_train" / "zero_copy.json"
