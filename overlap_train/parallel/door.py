"""The door at which a host waits for another one: whoever connects is greeted by a thread of its own.

The thread that waits owns the listening sockets. Each greeting thread owns its connection until it has let
the peer in; then the thread that waits gets it. What goes wrong in a greeting, whatever it is, ends that
greeting alone. No more than `most` run at once: the next one to come ends the oldest, so connections that say
nothing keep no other out.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from overlap_train._support.closing import Closing
from overlap_train.parallel.stream import Stream

__all__ = ["Door"]

_T = TypeVar("_T")
_PAUSE_S, _LONGEST_WAIT_S = 0.1, 3600.0
_log = logging.getLogger(__name__)


class Door(Generic[_T], Closing):
    """Greets whoever connects until one is let in. Belongs to the thread that waits.

    Attributes:
        turned_away: how many were not let in.
        reason: why the last of them was not, with its address.
    """

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        greet: Callable[[Stream, float], _T],
        *,
        most: int = 16,
        greeting_s: float = 10.0,
    ) -> None:
        """Take over sockets.

        Args:
            listeners: that listen; closed with the door.
            greet: called on a thread of its own with each connection and the time of `time.monotonic()` by
                which it has to be done; returns what `wait` is to return, or raises anything to turn it away.
            most: greetings at once.
            greeting_s: seconds that one may take.
        """
        self.turned_away = 0
        self.reason = ""
        self._listeners = listeners
        self._greet = greet
        self._most = most
        self._greeting_s = greeting_s
        self._lock = threading.Lock()
        self._greeted: dict[Stream, threading.Thread] = {}  # the oldest first
        self._let_in: list[_T] = []  # one at most
        self._closed = False
        try:
            self._woken, self._wake = socket.socketpair()
        except OSError:  # such as too many open files: whoever tries again finds the port free
            for listener in listeners:
                listener.close()
            raise

    def wait(self, timeout_s: float) -> _T | None:
        """Return what `greet` did for the first peer that was let in, or None if none was in time."""
        deadline = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            for listener in self._listeners:
                listener.setblocking(False)
                selector.register(listener, selectors.EVENT_READ, listener)
            while (left := deadline - time.monotonic()) > 0:
                for key, _ in selector.select(min(left, _LONGEST_WAIT_S)):
                    if key.data is not None:
                        self._answer(key.data, deadline)
                with self._lock:
                    if self._let_in:
                        break
        with self._lock:
            self._closed = True
            return self._let_in[0] if self._let_in else None

    def close(self) -> None:
        """Stop listening and end the greetings that are under way. Idempotent."""
        for listener in self._listeners:
            listener.close()
        with self._lock:
            self._closed = True
            greeted = dict(self._greeted)
        for stream in greeted:
            stream.abort()
        for thread in greeted.values():
            thread.join()
        self._woken.close()
        self._wake.close()

    def _answer(self, listener: socket.socket, deadline: float) -> None:
        """Begin to greet the next one that has come to a listener."""
        try:
            connection, address = listener.accept()
        except BlockingIOError:  # it has gone again
            return
        except OSError as error:
            # Such as too many open files: what can be freed is freed, and the wait must not spin.
            _log.warning("a connection could not be accepted: %s", error)
            self._end_oldest(0)
            time.sleep(_PAUSE_S)
            return
        try:
            stream = Stream(connection)
        except OSError:  # it has gone already
            connection.close()
            return
        self._end_oldest(self._most - 1)
        due = min(deadline, time.monotonic() + self._greeting_s)
        work = threading.Thread(
            target=self._run, args=(stream, address[0], due), name="overlap-greeting", daemon=True
        )
        try:
            with self._lock:
                work.start()
                self._greeted[stream] = work
        except RuntimeError as error:  # no more threads are to be had
            self._turn_away(stream, address[0], error)

    def _end_oldest(self, most: int) -> None:
        """End greetings until no more than `most` are left."""
        with self._lock:
            greeted = list(self._greeted.items())
        for stream, thread in greeted[: max(0, len(greeted) - most)]:
            stream.abort()
            thread.join()

    def _run(self, stream: Stream, address: str, deadline: float) -> None:
        """Greet one. Runs on a thread of its own."""
        try:
            result = self._greet(stream, deadline)
        except Exception as error:  # whatever a stranger sends, this host lives on
            self._turn_away(stream, address, error)
            return
        with self._lock:
            first = not self._let_in and not self._closed
            if first:
                self._let_in.append(result)
                del self._greeted[stream]  # so that nothing here ends the connection any more
        if not first:
            self._turn_away(stream, address, RuntimeError("another one has been let in"))
            return
        with contextlib.suppress(OSError):  # the one that waits may have seen it and closed the door
            self._wake.send(b"!")

    def _turn_away(self, stream: Stream, address: str, error: Exception) -> None:
        stream.close()
        with self._lock:
            self.turned_away += 1
            self.reason = f"{address}: {str(error) or type(error).__name__}"
            self._greeted.pop(stream, None)
        _log.info("turned away %s: %s", address, error)
