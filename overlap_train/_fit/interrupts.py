"""Ctrl-C and SIGTERM during a `fit`: the first asks, the second does not.

The handlers are installed only in the main thread, where Python runs them, and put back afterwards. One of
the user's is called too; what it raises, such as SystemExit, is raised when the fit has ended in order. One
that a callback installs during the fit stays, as under Keras. It may hold ours as the one before it, which
then does what the one before ours does.

Under `routed()` a signal does what it does to a fit of Keras's, once the epochs that are done are delivered:
it raises KeyboardInterrupt, or ends the process, and a handler of the user's that returns lets the fit go on.

`timeout` sends SIGTERM to its child and then to the child's process group, so the child gets two of them.
Those that come together are one.

Python calls a handler between two of its own instructions, and so never while native code waits. A thread
hears the signals too, and insists on them where the fit does not begin to end within two seconds. SIGTERM
then ends the process, as it would have done without a fit. A first Ctrl-C raises KeyboardInterrupt where Python
runs or waits; only a second one ends the process, which may be a notebook's. A first signal for which the user
has a handler is left to that, which may not mean to end anything.

A process that the user's data or functions fork during the fit has the handlers from before it, or a pool
that ends its workers by SIGTERM would wait for them for ever. Only the first Ctrl-C, which a terminal sends
to them too, is left to the fit: it may still need a batch from them to end in order.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import signal
import threading
import time
from types import FrameType
from typing import Any

from overlap_train._support import forks
from overlap_train._support.main_thread import SignalListener

__all__ = ["Interrupted", "Interrupts"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_TOGETHER_S = 0.5
_PATIENCE_S = 2.0  # which leaves one of three seconds to end
_LOOK_AGAIN_S = 1.0

_active: list[Interrupts] = []  # of the main thread, the innermost last: a callback may call `fit`


class Interrupted(Exception):
    """Ends a wait because a signal came; does not leave the fit."""


class Interrupts:
    """Notes the first signal; a second one raises KeyboardInterrupt where the main thread stands.

    Args:
        passes_on: whether the first one does to the fit in the end what it would do to one of Keras's.
        insists: whether the first one must have its effect in time; not where other processes decide on that.

    Attributes:
        received: the name of the signal that asked to stop, such as "SIGINT", or None.
    """

    def __init__(self, *, passes_on: bool = False, insists: bool = True) -> None:
        self.received: str | None = None
        self._received_s = 0.0  # of `time.monotonic`
        self._passes_on = passes_on
        self._previous: dict[int, Any] = {}
        self._raised: BaseException | None = None
        self._begins_to_end = not insists
        self._busy_until_s = 0.0
        self._over = False
        self._over_in_children = mmap.mmap(-1, 1)  # memory that forked processes share: 1 behind the fit
        self._listener: SignalListener | None = None
        # Of the outermost fit: when a signal last raised an exception, and what the listener has heard.
        self._raised_s = 0.0
        self._count = 0
        self._last: tuple[int, float] = 0, -math.inf
        self._repeated = False
        self._skips = False

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            forks.register(self)
            _active.append(self)
            for number in _SIGNALS:
                handler = signal.getsignal(number)
                # None: installed by C code, which we could not put back. Ignored: somebody wants it so.
                if handler is not None and handler != signal.SIG_IGN:
                    self._previous[number] = signal.signal(number, self._handle)
            if self is _active[0]:
                self._listener = SignalListener(self._listen)
                self._listener.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._over = True
        if self in _active:
            _active.remove(self)
        for number, handler in self._previous.items():
            if signal.getsignal(number) == self._handle:
                signal.signal(number, handler)
        forks.unregister(self)
        self._over_in_children[0] = 1
        if self._listener is not None:
            self._listener.__exit__()
        raised, self._raised = self._raised, None
        if raised is not None and kind is None:
            raise raised
        if self._passes_on and self.received is not None:
            number = signal.Signals[self.received]
            if signal.getsignal(number) == signal.SIG_DFL:
                os.kill(os.getpid(), number)

    def begin_to_end(self) -> None:
        """Says that the fit does what the first signal asked for."""
        self._begins_to_end = True

    def expect(self, seconds: float) -> None:
        """Says that a compiled call begins that should end within this time, and in which none can be heeded."""
        self._busy_until_s = time.monotonic() + seconds

    def pass_on(self) -> None:
        """Raises what the first signal would have raised in a fit of Keras's, if that is wanted.

        Raises:
            KeyboardInterrupt: it came, and no handler of the user's has raised anything else.
        """
        if not self._passes_on or self.received is None:
            return
        raised, self._raised = self._raised, None
        raise raised if raised is not None else KeyboardInterrupt(self.received)

    def in_child(self) -> None:
        """Puts the handlers back in a process that was forked during the fit."""
        self._over = True  # for whoever has kept our handler
        if self._listener is not None:
            self._listener.leave()
        _active.clear()
        for number, handler in self._previous.items():
            if signal.getsignal(number) == self._handle:
                python = handler is signal.default_int_handler
                signal.signal(number, self._leave_to_fit if python else handler)

    def _leave_to_fit(self, number: int, frame: FrameType | None) -> None:
        """Does nothing about the first Ctrl-C in a forked process, as long as the fit goes on."""
        signal.signal(number, signal.default_int_handler)
        if self._over_in_children[0]:
            signal.default_int_handler(number, frame)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._over:
            self._hand_on(number, frame)
            return
        name = signal.Signals(number).name
        if self.received is not None:
            if name == self.received == "SIGTERM" and time.monotonic() < self._received_s + _TOGETHER_S:
                return
            first = [*_active, self][0]
            first._raised_s = time.monotonic()
            raised, self._raised = self._raised, None
            if raised is None:
                raised = KeyboardInterrupt(name if first._repeated else f"{self.received}, then {name}")
            raise raised
        handler = self._previous.get(number)
        own = handler if callable(handler) and handler is not signal.default_int_handler else None
        if own is None or not self._passes_on:
            self._receive(name)
        if own is not None:
            try:
                own(number, frame)
            except BaseException as error:
                self._receive(name)
                self._raised = error

    def _hand_on(self, number: int, frame: FrameType | None) -> None:
        """Does behind the fit what the handler before this one would do."""
        handler = self._previous[number]
        if callable(handler):
            handler(number, frame)
        else:  # the system's, which ends the process
            signal.signal(number, handler)
            os.kill(os.getpid(), number)

    def _receive(self, name: str) -> None:
        self.received, self._received_s = name, time.monotonic()

    # What follows runs on the listener's thread.

    def _listen(self, signals: bytes) -> float | None:
        """Hears signals, and acts when it is time; returns in how many seconds to call this again."""
        now_s = time.monotonic()
        for number in signals:
            if number in self._previous:
                self._hear(number, now_s)
        fit = [self, *_active][-1]
        number, heard_s = self._last
        if self._count == 0 or self._over or self._raised_s > heard_s - _TOGETHER_S:
            return None
        if self._count == 1 and fit._begins_to_end:
            return None if fit is self else _LOOK_AGAIN_S
        left_s = max(heard_s + _PATIENCE_S, fit._busy_until_s) - now_s
        return left_s if left_s > 0 else self._insist(number, fit)

    def _hear(self, number: int, now_s: float) -> None:
        if self._skips:  # the listener's own
            self._skips = False
        elif self._last[0] != signal.SIGTERM or number != signal.SIGTERM or now_s > self._last[1] + _TOGETHER_S:
            self._count += 1
            self._last = number, now_s

    def _insist(self, number: int, fit: Interrupts) -> float | None:
        """Does what a signal asked for, as far as another thread can; returns when to try again, if ever."""
        handler = self._previous[number]
        own = callable(handler) and handler is not signal.default_int_handler
        if self._count > 1 or (number == signal.SIGTERM and not own):
            _end_process(number)
        elif fit.received is None or (own and self._raised is None):
            return _LOOK_AGAIN_S  # Python has not been told yet, or the user's handler lets the fit go on
        elif not self._repeated:
            self._repeated = self._skips = True
            signal.pthread_kill(threading.main_thread().ident or 0, number)
        return None


def _end_process(number: int) -> None:
    """Has the system do what it does about a signal. `signal.signal` is for the main thread only."""
    text = f"overlap_train: {signal.Signals(number).name} ends the process, for the training does not stop\n"
    os.write(2, text.encode())
    set_handler = ctypes.pythonapi.PyOS_setsig
    set_handler.argtypes, set_handler.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    set_handler(number, None)
    os.kill(os.getpid(), number)
