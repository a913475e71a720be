"""Ctrl-C and SIGTERM during a `fit`: the first asks, the second does not.

The handlers are installed only in the main thread, where Python runs them, and put back afterwards. One of
the user's is called too; what it raises, such as SystemExit, is raised when the fit has ended in order. One
that a callback installs during the fit stays, as under Keras. It may hold ours as the one before it, which
then does what the one before ours does.

Under `routed()` a signal does what it does to a fit of Keras's, once the epochs that are done are delivered:
it raises KeyboardInterrupt, or ends the process, and a handler of the user's that returns lets the fit go on.

`timeout` sends SIGTERM to its child and then to the child's process group, so the child gets two of them.
Those that come together are one.

A second thread hears the signals as well and insists on them: within three seconds the fit begins to end, or
is ended. SIGTERM then ends the process, as it does at once without a fit. Ctrl-C raises KeyboardInterrupt
where Python runs or waits, as it does at once without a fit; where native code waits, it ends the process.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import os
import signal
import sys
import threading
import time
import traceback
from types import FrameType
from typing import Any, NoReturn

from overlap_train._support.main_thread import Alarm, SignalListener

__all__ = ["Interrupted", "Interrupts"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_TOGETHER_S = 0.5
_PATIENCE_S = 2.0  # of three seconds
_ANSWER_S = 0.5  # enough for Python to run a handler
_LOOK_AGAIN_S = 1.0
_IDLE = 0.1  # of a core: a process that uses less waits, and does not compute

_active: list[Interrupts] = []  # the innermost last: a callback may call `fit`


class Interrupted(Exception):
    """Ends a wait because a signal came; does not leave the fit."""


class Interrupts:
    """Notes the first signal; a second one raises KeyboardInterrupt where the main thread stands.

    Belongs to the main thread, but for what a listener to the signals does.

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
        # What became of the signals: the fit begins to end; it ends now; a handler of the user's decides.
        self._heeded, self._hurried, self._handed_on = not insists, False, False
        self._over = False
        self._alarm = Alarm(self._raise)
        self._listener = SignalListener(self._listen)
        # Of the listener.
        self._heard: int | None = None
        self._heard_s = 0.0
        self._heard_again = False
        self._act_s = math.inf
        self._used = 0.0, 0.0
        self._busy_until_s = 0.0
        self._asked = threading.Event()
        self._called = set[int]()

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                handler = signal.getsignal(number)
                # None: installed by C code, which we could not put back. Ignored: somebody wants it so.
                if handler is not None and handler != signal.SIG_IGN:
                    self._previous[number] = signal.signal(number, self._handle)
        if self._previous:
            _put_back_in_forks()
            _active.append(self)
            self._alarm.__enter__()
            self._listener.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._over = True
        if self._previous:
            _active.remove(self)
            self._listener.__exit__()
            self._put_back()
        raised, self._raised = self._raised, None
        if raised is not None and kind is None:
            raise raised
        if self._passes_on and self.received is not None:
            number = signal.Signals[self.received]
            if signal.getsignal(number) == signal.SIG_DFL:
                os.kill(os.getpid(), number)

    def heed(self) -> None:
        """Says that the fit begins to end, as the first signal asked."""
        self._heeded = True

    def expect(self, seconds: float) -> None:
        """Says that a compiled call begins that may take so long, in which nothing can be heeded."""
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

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number in self._called:  # in the place of Python, which comes to it only now
            self._called.remove(number)
            return
        if self._over:
            self._hand_on(number, frame)
            return
        name = signal.Signals(number).name
        if self.received is not None:
            if name == self.received == "SIGTERM" and time.monotonic() < self._received_s + _TOGETHER_S:
                return
            self._hurried = True
            raise KeyboardInterrupt(f"{self.received}, then {name}")
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
            else:
                self._handed_on = self._of_user(number) is not None

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

    def _put_back(self) -> None:
        self._alarm.__exit__()
        for number, handler in self._previous.items():
            if signal.getsignal(number) == self._handle:
                signal.signal(number, handler)

    def leave(self) -> None:
        """Gives the signals back in a process that was forked off, which hears those of its own."""
        self._over = True
        self._listener.leave()
        self._put_back()

    # What follows runs on the listener's thread.

    def _listen(self, signals: bytes) -> float | None:
        """Hears signals, and acts when it is time; returns in how many seconds it is."""
        now_s = time.monotonic()
        for number in signals:
            if number in self._previous:
                both = number == self._heard == signal.SIGTERM and now_s < self._heard_s + _TOGETHER_S
                self._heard_again = self._heard_again or (self._heard is not None and not both)
                self._heard, self._heard_s = number, now_s
                self._act_s = now_s + _PATIENCE_S
                self._used = now_s, time.process_time()
        self._act_s = max(self._act_s, self._busy_until_s)
        if self._heard is not None and self._act_s <= now_s:
            self._act_s = math.inf if self._is_settled() else now_s + self._insist(self._heard)
        return None if math.isinf(self._act_s) else max(0.0, self._act_s - time.monotonic())

    def _is_settled(self) -> bool:
        begins_to_end = self._heeded and not self._heard_again
        return self._over or self._hurried or self._handed_on or begins_to_end

    def _insist(self, number: int) -> float:
        """Has a signal that was not heeded take effect; returns in how many seconds to look again."""
        if _active[-1] is not self:
            return _LOOK_AGAIN_S  # within a fit of a callback's
        if number == signal.SIGINT or self._raised is not None:
            self._asked.clear()
            self._alarm.ring()
            if self._asked.wait(_ANSWER_S):
                return math.inf
        # The main thread is in native code.
        (since_s, before_s), self._used = self._used, (time.monotonic(), time.process_time())
        computes = self._used[1] - before_s > _IDLE * (self._used[0] - since_s)
        if number == signal.SIGINT and computes and not self._heard_again:
            return _LOOK_AGAIN_S
        if not self._is_settled():
            self._end_process(number)
        return math.inf

    def _raise(self) -> None:
        """Ends what Python does in the main thread; called there."""
        self._asked.set()
        if not self._is_settled():
            self._hurried = True
            raised, self._raised = self._raised, None
            raise raised if raised is not None else KeyboardInterrupt(self.received)

    def _end_process(self, number: int) -> None:
        """Does what the signal does without a fit, but for the time in which the main thread would."""
        own = self._of_user(number)
        if own is not None and self._raised is None:
            self._called.add(number)
            try:
                own(number, None)
            except BaseException as error:
                _exit_by(error)
            self._handed_on = True
        elif self._raised is not None:
            _exit_by(self._raised)
        else:
            name = signal.Signals(number).name
            text = (
                f"overlap_train: {name} ends the process: the training did not come to the end of its call\n"
            )
            os.write(2, text.encode())
            _give_back(number)

    def _of_user(self, number: int) -> Any:
        """Returns the handler of the user's that a signal had before the fit, or None."""
        handler = self._previous[number]
        default = not callable(handler) or handler is signal.default_int_handler
        return None if default or isinstance(getattr(handler, "__self__", None), Interrupts) else handler


def _give_back(number: int) -> None:
    """Lets the system do what it does about a signal. `signal.signal` is for the main thread only."""
    set_handler = ctypes.pythonapi.PyOS_setsig
    set_handler.argtypes, set_handler.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    set_handler(number, None)
    os.kill(os.getpid(), number)


def _exit_by(error: BaseException) -> NoReturn:
    """Ends the process as it would end if the main thread raised an exception that nobody catches."""
    code = (error.code or 0) if isinstance(error, SystemExit) else 1
    if not isinstance(error, SystemExit):
        traceback.print_exception(error)
    elif not isinstance(code, int):
        print(code, file=sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code if isinstance(code, int) else 1)


@functools.cache
def _put_back_in_forks() -> None:
    """Has processes that are forked off during a fit hear their own signals, as they would without it."""
    os.register_at_fork(after_in_child=_leave_all)


def _leave_all() -> None:
    while _active:
        _active.pop().leave()
