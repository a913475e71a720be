"""Ctrl-C and SIGTERM during a `fit`: the first asks, the second does not.

The handlers are installed only in the main thread, where Python runs them, and put back afterwards. A handler
of the user's is called too; what it raises, such as SystemExit, is raised when the fit has ended in order.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

__all__ = ["Interrupted", "Interrupts"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(Exception):
    """Ends a wait because a signal came; does not leave the fit."""


class Interrupts:
    """Notes the first signal; a second one raises KeyboardInterrupt where the main thread stands.

    Attributes:
        received: the name of the signal that asked to stop, such as "SIGINT", or None.
    """

    def __init__(self) -> None:
        self.received: str | None = None
        self._previous: dict[signal.Signals, Any] = {}
        self._raised: BaseException | None = None

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                handler = signal.getsignal(number)
                # None: installed by C code, which we could not put back. Ignored: somebody wants it so.
                if handler is not None and handler != signal.SIG_IGN:
                    self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()
        raised, self._raised = self._raised, None
        if raised is not None and kind is None:
            raise raised

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            raise KeyboardInterrupt(f"{self.received}, then {signal.Signals(number).name}")
        self.received = signal.Signals(number).name
        handler = self._previous.get(signal.Signals(number))
        if callable(handler) and handler is not signal.default_int_handler:
            try:
                handler(number, frame)
            except BaseException as error:
                self._raised = error
