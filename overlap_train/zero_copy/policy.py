"""When reading host memory in place beats copying it to the device first.

On a GPU that shares its memory with the CPU it always does. On a discrete GPU it does for small inputs that
are read once; `measure_crossover` measures up to which size, and stores that in a file. On the CPU a tensor
on an array's memory is faster than a copy at any size (`scripts/compare_zero_copy.sh`).
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from typing import Any, Literal, get_args

from overlap_train._support.arguments import is_count, require_choice
from overlap_train._support.caches import copy_times
from overlap_train._support.files import read_regular, replace_content

_MOST_BYTES = 1 << 20

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


def keep_crossover(key: str, crossover_bytes: int) -> None:
    """Store a device's crossover atomically. It holds for this process even if writing raises OSError."""
    stored_crossovers()[key] = crossover_bytes
    path = copy_times()
    if path is None:
        raise OSError("there is no home directory to keep a crossover in; set XDG_CACHE_HOME")
    replace_content(path, json.dumps(_read() | stored_crossovers(), indent=1, sort_keys=True))


@functools.cache
def stored_crossovers() -> dict[str, int]:
    """Return the crossovers in bytes by device: of the file, which is read once, and of this process."""
    return _read()


def _read() -> dict[str, int]:
    """Return what the file has; a damaged one counts as empty, as everything in it can be measured again."""
    path = copy_times()
    try:
        content: Any = {} if path is None else json.loads(read_regular(path, most_bytes=_MOST_BYTES).decode())
        return {key: value for key, value in content.items() if is_count(value)}
    except (OSError, ValueError, AttributeError, RecursionError):
        return {}
