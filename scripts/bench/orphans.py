"""No orphans: a child process ends with the one that started it, however that one ends.

A comparison that was killed would otherwise leave a run behind that disturbs the runs of the next call.
`runner`, whose children are sessions of their own, has its own way, by their standard input.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

__all__ = ["ENDS_WITH_PARENT", "run_apart"]

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def _end_with_parent() -> None:
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


# For `preexec_fn`. Loaded beforehand, as a child between fork and exec must not take locks.
ENDS_WITH_PARENT: Callable[[], None] | None = None if _LIBC is None else _end_with_parent


def run_apart(name: str, arguments: Sequence[str], folder: str, log: Path, **environment: str) -> Any:
    """Runs `python -m` with a folder as its home; returns the JSON of its last line.

    Args:
        name: what to call it, where it fails.
        arguments: the module's name first.
        folder: for its home, its temporary files and its cache.
        log: for its standard error.
        environment: more variables.

    Raises:
        RuntimeError: it failed; the message has the end of its standard error.
    """
    places = {"HOME": folder, "TMPDIR": folder, "OVERLAP_TRAIN_CACHE_DIR": f"{folder}/cache"}
    with log.open("wb") as said:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", *arguments],
            stdout=subprocess.PIPE,
            stderr=said,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **places, **environment},
            preexec_fn=ENDS_WITH_PARENT,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(f"{name} ended with {done.returncode}: {log.read_text()[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])
