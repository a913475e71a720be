"""When reading host memory in place beats copying it to the device first.

On a GPU that shares its memory with the CPU it always does. On a discrete GPU it does for small inputs that
are read once; `measure_crossover` measures up to which size, and stores that in a file. On the CPU a tensor
on an array's memory is faster than a copy at any size (`scripts/compare_zero_copy.sh`).
"""

from __future__ import annotations

import json
import os
import threading
from dataclasses import dataclass
from typing import Any, Literal, get_args

from overlap_train._support.arguments import is_count, require_choice, require_count, require_path
from overlap_train._support.caches import copy_times
from overlap_train._support.files import read_regular, replace_content

_MOST_BYTES = 1 << 20

__all__ = ["Choice", "CrossoverCache", "Mode", "check_mode", "choose_sharing"]

Mode = Literal["auto", "copy", "zero_copy"]


@dataclass(frozen=True, slots=True)
class Choice:
    """Say whether memory is shared, and why.

    Attributes:
        zero_copy: True to share, False to copy.
        reason: the reason, as a clause that can follow "because".
    """

    zero_copy: bool
    reason: str


def check_mode(mode: Mode) -> Mode:
    """Return `mode` if it is one of `Mode`, or raise ValueError."""
    checked: Mode = require_choice("mode", mode, get_args(Mode))
    return checked


def choose_sharing(mode: Mode, size_bytes: int, *, integrated: bool, crossover_bytes: int | None) -> Choice:
    """Decide for an input that a GPU reads once; up to `crossover_bytes` sharing was measured as quicker."""
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
    """Measured crossovers in one JSON file for each user.

    A damaged or unreadable file counts as empty, as everything in it can be measured again.
    May be used from any thread and, since the file is replaced as a whole, from any process.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._path = require_path("path", path) if path is not None else copy_times()
        self._lock = threading.Lock()
        self._entries: dict[str, int] | None = None

    def get(self, key: str) -> int | None:
        """Return the crossover in bytes that was stored for a device, or None."""
        with self._lock:
            if self._entries is None:
                self._entries = self._read()
            return self._entries.get(key)

    def put(self, key: str, crossover_bytes: int) -> None:
        """Store a crossover atomically. It holds for this object even if writing raises OSError."""
        crossover_bytes = require_count("crossover_bytes", crossover_bytes, minimum=0)
        with self._lock:
            self._entries = {**self._read(), **(self._entries or {}), key: crossover_bytes}
            if self._path is None:
                raise OSError("there is no home directory to keep a crossover in; set XDG_CACHE_HOME")
            replace_content(self._path, json.dumps(self._entries, indent=1, sort_keys=True))

    def _read(self) -> dict[str, int]:
        if self._path is None:
            return {}
        try:
            content: Any = json.loads(read_regular(self._path, most_bytes=_MOST_BYTES).decode())
        except (OSError, ValueError, RecursionError):
            return {}
        if not isinstance(content, dict):
            return {}
        return {key: value for key, value in content.items() if is_count(value)}
