"""What another thread has the main thread do in the middle of a wait, and limits of time made of that.

An `Alarm` rings by SIGURG, which does nothing otherwise. A handler that raises ends whatever Python waits for
in the main thread: `time.sleep`, a lock, a queue, a socket, a process. Native code it does not end, since
Python runs handlers between two of its own instructions.
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
from types import FrameType
from typing import Any, TypeVar

from overlap_train._support.threads import start

__all__ = ["Alarm", "SignalListener", "call_within"]

_R = TypeVar("_R")

_AGAIN_S = 1.0
_END = b"\0"  # no signal


class Alarm:
    """Lets other threads have a function called on the main thread while the block runs there.

    Attributes:
        armed: whether `ring` works: in a block of the main thread, unless native code has a handler.
    """

    def __init__(self, function: Callable[[], object]) -> None:
        self._function = function
        self._previous: Any = None
        self._rung = False
        self.armed = False

    def __enter__(self) -> Alarm:
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.getsignal(signal.SIGURG)
            if self._previous is not None:
                signal.signal(signal.SIGURG, self._handle)
                self.armed = True
        return self

    def __exit__(self, *_: object) -> None:
        if self.armed:
            self.armed = False
            if signal.getsignal(signal.SIGURG) == self._handle:
                signal.signal(signal.SIGURG, self._previous)

    def ring(self) -> None:
        """Has the function called, as soon as Python runs in the main thread; any other thread."""
        if self.armed:
            self._rung = True
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGURG)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        rung, self._rung = self._rung, False
        if rung and self.armed:
            self._function()
        elif callable(self._previous):
            self._previous(number, frame)


class SignalListener:
    """Hears signals on a thread of its own while a block of the main thread runs, whatever that thread does.

    By `signal.set_wakeup_fd`. Who listened before, such as asyncio, is passed every signal on.

    Args:
        act: called on the listener's thread with the signals that have come, or with none when its time is
            over; returns in how many seconds it wants to be called, at the latest, or None.
    """

    def __init__(self, act: Callable[[bytes], float | None]) -> None:
        self._act = act
        self._thread = threading.Thread(target=self._run, name="signals", daemon=True)

    def __enter__(self) -> SignalListener:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        with contextlib.suppress(RuntimeError):  # can't start new thread: nobody listens
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        os.write(self._writer, _END)  # processes that were forked off may hold the pipe open
        if self._thread.ident is not None:
            self._thread.join()
        self.leave()

    def leave(self) -> None:
        """Lets signals go where they went before; by itself in a process that was forked off."""
        present = signal.set_wakeup_fd(-1)
        with contextlib.suppress(ValueError, OSError):  # it has been closed
            signal.set_wakeup_fd(self._before if present == self._writer else present)
        os.close(self._reader)
        os.close(self._writer)

    def _run(self) -> None:
        poll, seconds = select.poll(), None
        poll.register(self._reader, select.POLLIN)
        while True:
            data = b""
            if poll.poll(None if seconds is None else math.ceil(1000 * seconds)):
                data = os.read(self._reader, 256)
                if self._before >= 0:
                    with contextlib.suppress(OSError):  # it is full, or has been closed
                        os.write(self._before, data.replace(_END, b""))
                if _END in data:
                    break
            seconds = self._act(data)


def call_within(seconds: float | None, function: Callable[[], _R], error: Callable[[], Exception]) -> _R:
    """Calls a function and returns its result, or ends it by an error if it takes longer than a time.

    On another thread than the main one it ends what runs Python, and not what waits.

    Args:
        seconds: the time; None for no limit.
        function: what is called, on this thread.
        error: makes the error.
    """
    if seconds is None:
        return function()
    limit = _Limit(seconds)
    try:
        try:
            limit.begin()
            return function()
        finally:
            limit.end()
    except _Late as late:
        limit.end()  # if it was in that
        where = late.__traceback__
    raise error().with_traceback(where)


class _Late(BaseException):
    """Ends what takes too long; no `except Exception` in it stops this."""


class _Limit:
    """Raises `_Late` on the thread that begins it, again and again until that ends it."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._thread = threading.get_ident()
        self._over = threading.Event()
        self._alarm = Alarm(self._raise)
        self._watch = threading.Thread(target=self._run, name="time-limit", daemon=True)

    def begin(self) -> None:
        self._alarm.__enter__()
        start(self._watch)

    def end(self) -> None:
        self._over.set()
        if self._watch.ident is not None:
            self._watch.join()
        self._alarm.__exit__()
        if not self._on_main:
            _raise_on(self._thread, None)

    @property
    def _on_main(self) -> bool:
        return self._thread == threading.main_thread().ident

    def _run(self) -> None:
        seconds = self._seconds
        while not self._over.wait(seconds):
            if self._on_main:
                self._alarm.ring()
            else:
                _raise_on(self._thread, _Late)
            seconds = _AGAIN_S

    def _raise(self) -> None:
        raise _Late


def _raise_on(thread: int, kind: type[BaseException] | None) -> None:
    """Has Python raise an exception on a thread before its next instruction, or takes that back."""
    what = ctypes.py_object() if kind is None else ctypes.py_object(kind)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), what)
