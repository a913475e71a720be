"""Hears signals on a thread, whatever the main thread does.

Python calls its handlers between two instructions of the main thread, and native code may hold that for ever.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import select
import signal
import threading
from collections.abc import Callable

__all__ = ["SignalListener", "end_by"]

_END = b"\0"  # the number of no signal


class SignalListener:
    """Hears signals while a block of the main thread runs (`signal.set_wakeup_fd`).

    What listened before, such as asyncio, is passed every signal on. `act` is called on the listener's thread
    with the signals that have come, or with none when its time is over; it returns in how many seconds it
    wants to be called, at the latest, or None.
    """

    def __init__(self, act: Callable[[bytes], float | None]) -> None:
        self._act = act
        self._before = self._writer = -1

    def __enter__(self) -> SignalListener:
        reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._run, args=(reader,), name="signals", daemon=True)
        with contextlib.suppress(RuntimeError):  # can't start new thread: nobody listens
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()
        if self._thread.ident is not None:
            os.set_blocking(self._writer, True)
            os.write(self._writer, _END)  # closing it would not do: forked processes have it, too
            self._thread.join()
        os.close(self._writer)

    def leave(self) -> None:
        """Let signals go where they went before; by itself in a process that was forked off."""
        present = signal.set_wakeup_fd(-1)
        with contextlib.suppress(ValueError, OSError):  # it has been closed
            signal.set_wakeup_fd(self._before if present == self._writer else present)

    def _run(self, reader: int) -> None:
        signals, seconds = select.poll(), None
        signals.register(reader, select.POLLIN)
        while True:
            data = b""
            if signals.poll(None if seconds is None else math.ceil(1000 * seconds)):
                data = os.read(reader, 256)
                if self._before >= 0:
                    with contextlib.suppress(OSError):  # it is full, or has been closed
                        os.write(self._before, data.rstrip(_END))
                if data.endswith(_END):
                    break
            seconds = self._act(data)
        os.close(reader)


def end_by(number: int) -> None:
    """End the process as a signal does that nobody handles; any thread.

    `signal.signal`, which could give it back to the system, is for the main thread only.
    """
    set_handler = ctypes.pythonapi.PyOS_setsig
    set_handler.argtypes, set_handler.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    set_handler(number, None)
    os.kill(os.getpid(), number)
