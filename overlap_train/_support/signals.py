"""Signals that are heard even if the main thread is busy, and whose handlers are undone in forks.

Python calls its handlers between two instructions of the main thread, which native code may hold for ever.

A child inherits the handlers, and its parent expects that SIGTERM ends it: `multiprocessing.Pool` sends one
and waits. Python drops signals that arrive between the fork and its own start in the child, so they are
blocked for that time. Handlers belong to the main thread; any thread may fork.
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

_BLOCKED = (signal.SIGINT, signal.SIGTERM)


_undoing: list[Callable[[], None]] = []
_masks = threading.local()


def register(undo: Callable[[], None]) -> None:
    """Call `undo` in each process that is forked from now on, on its only thread."""
    _undoing.append(undo)


def unregister(undo: Callable[[], None]) -> None:
    """Undo `register`. Idempotent, and without effect in a child, which has none left."""
    if undo in _undoing:
        _undoing.remove(undo)


def _block() -> None:
    _masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED) if _undoing else None


def _unblock() -> None:
    if _masks.before is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _masks.before)


def _begin_child() -> None:
    try:
        while _undoing:
            _undoing.pop()()  # the newest first: its handlers have replaced the others'
    finally:
        _unblock()


os.register_at_fork(before=_block, after_in_parent=_unblock, after_in_child=_begin_child)


_END = b"\0"  # the number of no signal


class SignalListener:
    """Hears signals while a block of the main thread runs (`signal.set_wakeup_fd`).

    The listener before it, such as asyncio's, gets every signal too. `act` is called on the listener's thread
    with the signals that have come, or without any after the number of seconds that it returned last.
    """

    def __init__(self, act: Callable[[bytes], float | None]) -> None:
        self._act = act
        self._before = self._writer = -1

    def __enter__(self) -> SignalListener:
        reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._run, args=(reader,), name="signals", daemon=True)
        with contextlib.suppress(RuntimeError):  # can't start new thread: signals are not heard
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()
        if self._thread.ident is not None:
            os.set_blocking(self._writer, True)
            os.write(self._writer, _END)  # closing it is not enough: forked processes have it too
            self._thread.join()
        os.close(self._writer)

    def leave(self) -> None:
        """Send signals where they went before. Also called in a forked process."""
        current = signal.set_wakeup_fd(-1)
        with contextlib.suppress(ValueError, OSError):  # it has been closed
            signal.set_wakeup_fd(self._before if current == self._writer else current)

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
    """End the process as a signal without a handler does, from any thread.

    `signal.signal`, which could restore the system's handler, is for the main thread only.
    """
    set_handler = ctypes.pythonapi.PyOS_setsig
    set_handler.argtypes, set_handler.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    set_handler(number, None)
    os.kill(os.getpid(), number)
