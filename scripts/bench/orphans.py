"""No orphans: a child process ends with the one that started it, however that one ends.

A comparison that was killed would otherwise leave a run behind that disturbs the runs of the next call.
`runner`, whose children are sessions of their own, has its own way, by their standard input.
"""

from __future__ import annotations

import ctypes
import signal
import sys
from collections.abc import Callable

__all__ = ["ENDS_WITH_PARENT"]

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def _end_with_parent() -> None:
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


# For `preexec_fn`. Loaded beforehand, as a child between fork and exec must not take locks.
ENDS_WITH_PARENT: Callable[[], None] | None = None if _LIBC is None else _end_with_parent
