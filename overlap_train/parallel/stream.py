"""A connected socket that is read and written with a deadline for all of it, with TLS or without.

One thread at a time reads and writes; `abort` may come from any thread.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time

__all__ = ["Stream"]

# Python's sockets take no longer time-outs than 2**31 ms.
_LONGEST_WAIT_S = 1e6
_WRITTEN_AT_ONCE = 1 << 20
# Seconds of silence before the first probe and between two, and how many may stay without an answer.
_PROBES = {"TCP_KEEPIDLE": 20, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 60_000}


class Stream:
    """Bytes from and to a peer. A deadline is a time of `time.monotonic()`; None is no deadline."""

    def __init__(self, connection: socket.socket) -> None:
        """Take over a connected socket."""
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _PROBES.items():
            if hasattr(socket, name):  # not every system has all of them
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self._socket = connection
        self._unread = b""
        self._lock = threading.Lock()  # wrapping a socket leaves the old one without its descriptor
        self._aborted = False

    def secure(
        self, context: ssl.SSLContext, deadline: float | None, *, server_name: str | None = None
    ) -> None:
        """Agree with the peer on TLS; a name makes this end the client, which checks the certificate.

        Raises:
            OSError: if the peer does not agree in time, has gone, or has another certificate.
        """
        with self._lock:
            if self._aborted:
                raise ConnectionAbortedError("the connection was ended")
            secured = context.wrap_socket(
                self._socket,
                server_side=server_name is None,
                server_hostname=server_name,
                do_handshake_on_connect=False,
            )
            self._socket = secured
        self._set_timeout(deadline)
        secured.do_handshake()

    def peek(self, deadline: float | None) -> bytes:
        """Return the first byte that has come, which stays to be read.

        Raises:
            TimeoutError: if none has come by the deadline.
            EOFError: if the peer closed the connection before.
            OSError: if the connection broke.
        """
        self._set_timeout(deadline)
        found = self._unread[:1] or self._socket.recv(1, socket.MSG_PEEK)
        if not found:
            raise EOFError("the connection was closed")
        return found

    def read(self, size: int, deadline: float | None) -> memoryview:
        """Return exactly `size` bytes.

        Raises:
            TimeoutError: if not all have come by the deadline, however few were missing.
            EOFError: if the peer closed the connection before.
            OSError: if the connection broke.
        """
        buffer = memoryview(bytearray(size))
        filled = min(size, len(self._unread))
        buffer[:filled], self._unread = self._unread[:filled], self._unread[filled:]
        while filled < size:
            self._set_timeout(deadline)
            count = self._socket.recv_into(buffer[filled:])
            if count == 0:
                raise EOFError("the connection was closed")
            filled += count
        return buffer

    def unread(self, data: bytes) -> None:
        """Put bytes back, to be read again."""
        self._unread = data + self._unread

    def write(self, data: bytes | memoryview, deadline: float | None) -> None:
        """Send bytes.

        Raises:
            TimeoutError: if the peer has not taken all of them by the deadline.
            OSError: if the connection broke.
        """
        left = memoryview(data)
        while left:
            self._set_timeout(deadline)
            left = left[self._socket.send(left[:_WRITTEN_AT_ONCE]) :]

    def drain(self, most: int, deadline: float) -> None:
        """Say that nothing more is written, and read on until the peer has closed too.

        Bytes that are left unread when a socket is closed make the system drop what was written last.
        """
        with contextlib.suppress(OSError, EOFError):
            self._socket.shutdown(socket.SHUT_WR)
            while most > 0:
                self._set_timeout(deadline)
                count = len(self._socket.recv(1 << 16))
                most = most - count if count else 0

    def abort(self) -> None:
        """End the connection under a thread that reads or writes; that one gets EOFError or OSError."""
        with self._lock, contextlib.suppress(OSError):  # it may have ended already
            self._aborted = True
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._socket.close()

    def _set_timeout(self, deadline: float | None) -> None:
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            raise TimeoutError("the deadline has passed")
        self._socket.settimeout(None if left is None else min(left, _LONGEST_WAIT_S))
