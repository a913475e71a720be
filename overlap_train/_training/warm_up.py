"""What TensorFlow prepares when a function first runs, prepared beside the tracing of other functions."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from overlap_train._support.threads import leaves_nothing

__all__ = ["WarmUp"]


class WarmUp:
    """Runs a compiled function on nothing, on a thread of its own.

    Optimising a graph and making its kernels takes TensorFlow as long as hundreds of steps, needs one core
    and leaves Python alone. What goes wrong is not reported: it comes again with the first true call. Where
    the system starts no more threads, that call prepares it.
    """

    def __init__(self, work: Callable[[], object]) -> None:
        self._work: Callable[[], object] | None = work
        self._seconds = 0.0
        self._thread = threading.Thread(target=self._run, name="loop-warm-up", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # can't start new thread
            self._work = None

    def wait(self) -> float:
        """Wait for its end; return how long it took, in seconds."""
        if self._thread.ident is not None:
            self._thread.join()
        return self._seconds

    @leaves_nothing
    def _run(self) -> None:
        start_s = time.monotonic()
        work, self._work = self._work, None  # which holds the data
        try:
            assert work is not None
            work()
        except Exception:
            pass
        finally:
            self._seconds = time.monotonic() - start_s
