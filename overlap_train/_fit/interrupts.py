"""Ctrl-C and SIGTERM during a `fit`: the first asks, the second does not.

The handlers are installed only in the main thread, where Python runs them, and put back afterwards. A
handler of the user's is called too; what it raises, such as SystemExit, is raised when the fit has ended in
order. A handler that a callback installs during the fit stays, as under Keras. It may call ours as the one
before it, which then does what the one before ours does. A fit in a callback of another one ends with that.

Under `routed()` a signal does what it does to a fit of Keras's, once the epochs that are done are delivered:
it raises KeyboardInterrupt, or ends the process, and a handler of the user's that returns lets the fit go on.

`timeout` sends SIGTERM to its child and then to the child's process group, so the child gets two of them.
Those that come together are one.

A process that the user's data or functions fork during the fit has the handlers from before it; otherwise a
pool that ends its workers by SIGTERM would wait for them for ever. Only the first Ctrl-C, which a terminal
sends to them too, is left to the fit: it may still need a batch from them to end in order.

A thread insists on a signal. If the fit has not begun to end after two seconds, because its data, a callback
or a function of the user's waits, SIGTERM does what it does without a fit, whatever the main thread does.
Ctrl-C, and a signal for which a handler of the user's raises, is sent once more, if nothing is computed. A
second signal that does not reach Python in this time, because native code waits, ends the process.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from types import FrameType
from typing import Any

from overlap_train._support import signals as signals_module
from overlap_train._support.signals import SignalListener, end_by

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_TOGETHER_S = 0.5
_PATIENCE_S = 2.0  # of the three seconds in which a signal is to act
_IDLE = 0.1  # of a core: a process that uses less waits


class Interrupted(Exception):
    """Ends a wait because a signal came; does not leave the fit."""


class Interrupts:
    """Notes the first signal; a second one raises KeyboardInterrupt wherever the main thread is.

    With `passes_on` the first one does in the end what it would do to a fit of Keras's. With `insists` it
    must act in time; several hosts do without, because their processes decide together.
    """

    def __init__(self, *, passes_on: bool = False, insists: bool = True) -> None:
        self._received: str | None = None
        self._received_s = 0.0  # of `time.monotonic`
        self._passes_on = passes_on
        self._previous: dict[int, Any] = {}
        self._error: BaseException | None = None
        self._over = False
        self._is_ending = not insists
        self._listener: SignalListener | None = None
        self._outer: Interrupts | None = None  # of a fit that is in a callback, which calls this one
        self._signal, self._signal_s, self._act_s, self._busy_until_s = 0, 0.0, math.inf, 0.0
        self._is_repeated = self._sends = False
        self._usage = 0.0, 0.0
        self._left_to_user: set[int] = set()

    @property
    def received(self) -> str | None:
        """The name of the first signal."""
        return self._received if self._outer is None else self._outer.received

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            owner = getattr(signal.getsignal(signal.SIGINT), "__self__", None)
            if isinstance(owner, Interrupts) and not owner._over:
                self._outer = owner
                return self
            signals_module.register(self.in_child)
            for number in _SIGNALS:
                handler = signal.getsignal(number)
                # None: installed by C code, which we could not put back. Ignored: that is on purpose.
                if handler is not None and handler != signal.SIG_IGN:
                    self._previous[number] = signal.signal(number, self._handle)
            if self._previous:
                self._listener = SignalListener(self._listen).__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._end()
        error, self._error = self._error, None
        if error is not None and kind is None:
            raise error
        if self._passes_on and self._received is not None:
            number = signal.Signals[self._received]
            if signal.getsignal(number) == signal.SIG_DFL:
                os.kill(os.getpid(), number)

    def _end(self) -> None:
        """Hears no more signals, and puts back the handlers of before. Idempotent."""
        self._over = True
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.__exit__()
        for number, handler in self._previous.items():
            if signal.getsignal(number) == self._handle:
                signal.signal(number, handler)
        signals_module.unregister(self.in_child)

    def heed(self) -> None:
        """Notes that the fit begins to end, because of the first signal."""
        (self._outer or self)._is_ending = True

    def expect(self, seconds: float) -> None:
        """Notes that a compiled call begins that may take this long, during which no signal can act."""
        (self._outer or self)._busy_until_s = time.monotonic() + seconds

    def pass_on(self) -> None:
        """Raises what the first signal would have raised in a fit of Keras's, with `passes_on`.

        That is KeyboardInterrupt unless a handler of the user's has raised something else.
        """
        if not self._passes_on or self.received is None:
            return
        error, self._error = self._error, None
        raise error if error is not None else KeyboardInterrupt(self.received)

    def in_child(self) -> None:
        """Puts the handlers back in a process that was forked during the fit."""
        self._over = True  # for code that still has our handler
        if self._listener is not None:
            self._listener.leave()
        for number, handler in self._previous.items():
            if signal.getsignal(number) == self._handle:
                python = handler is signal.default_int_handler
                signal.signal(number, self._leave_to_fit if python else handler)

    def _leave_to_fit(self, number: int, frame: FrameType | None) -> None:
        """Does nothing about the first Ctrl-C in a forked process."""
        signal.signal(number, signal.default_int_handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._over:
            self._hand_on(number, frame)
            return
        name = signal.Signals(number).name
        if self._received is not None:
            if name == self._received == "SIGTERM" and time.monotonic() < self._received_s + _TOGETHER_S:
                return
            self._end()  # what is raised may cut short the way to `__exit__`
            error, self._error = self._error, None
            raise error if error is not None else KeyboardInterrupt(f"{self._received}, then {name}")
        handler: Any = self._previous.get(number)
        is_user_s = callable(handler) and handler is not signal.default_int_handler
        if not is_user_s or not self._passes_on:
            self._receive(name)
        if is_user_s:
            try:
                handler(number, frame)
            except BaseException as error:
                self._receive(name)
                self._error = error
            else:
                self._left_to_user.add(number)

    def _hand_on(self, number: int, frame: FrameType | None) -> None:
        """Does after the fit what the handler before this one would do."""
        handler = self._previous[signal.Signals(number)]
        if callable(handler):
            handler(number, frame)
        else:  # the system's, which ends the process
            signal.signal(number, handler)
            os.kill(os.getpid(), number)

    def _listen(self, signals: bytes) -> float | None:
        """Takes in signals, and insists on them when it is time; on the listener's thread.

        Returns in how many seconds that is, or None.
        """
        now_s = time.monotonic()
        for number in signals:
            if self._sends:  # what comes is this thread's own
                self._sends = False
            elif not self._is_repeated and self._is_for_fit(number, now_s):  # a third one would put it off
                self._is_repeated = self._signal != 0
                self._signal, self._signal_s, self._act_s = number, now_s, now_s + _PATIENCE_S
                self._usage = now_s, time.process_time()
        if self._over or (self._is_ending and not self._is_repeated):
            self._act_s = math.inf
        elif max(self._act_s, self._busy_until_s) <= now_s:
            self._act_s = math.inf if self._insist(self._signal) else now_s + 1.0
        return None if math.isinf(self._act_s) else max(self._act_s, self._busy_until_s) - now_s

    def _is_for_fit(self, number: int, now_s: float) -> bool:
        """Whether a signal is to end the fit: no callback handles it, and it is no repeated SIGTERM."""
        if number not in self._previous:
            return False
        ours = getattr(signal.getsignal(number), "__func__", None) is Interrupts._handle
        return ours and not (
            number == self._signal == signal.SIGTERM and now_s < self._signal_s + _TOGETHER_S
        )

    def _insist(self, number: int) -> bool:
        """Makes a signal act that the fit has not obeyed; returns whether it did."""
        if number in self._left_to_user:
            return True
        if self._is_repeated or self._previous.get(number) == signal.SIG_DFL:
            end_by(number)
        if self._received is None or time.monotonic() < self._received_s + _PATIENCE_S:
            return False  # Python has not run a handler yet, or just now
        (since_s, before_s), self._usage = self._usage, (time.monotonic(), time.process_time())
        waits = self._usage[1] - before_s < _IDLE * (self._usage[0] - since_s)
        if waits:
            self._sends = True
            os.kill(os.getpid(), number)
        return waits

    def _receive(self, name: str) -> None:
        self._received, self._received_s = name, time.monotonic()
