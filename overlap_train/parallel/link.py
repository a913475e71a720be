"""A connection between two hosts that carries messages of JSON and the bytes of arrays; nothing is unpickled.

A frame has a head of 16 bytes, big-endian: the letters `OVT1`, the header's length (uint32) and the body's
(uint64). Then comes the header, JSON in UTF-8, with the message and the sizes of the parts, and the body,
which is the parts one after another. A reader says beforehand how large the parts are that it expects, so
nobody can make it take up more memory than that.

A peer that dies closes its connections, which ends every wait here at once. One that vanishes with its
machine is found out by TCP's own probes, after a minute.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from overlap_train.errors import ClusterConfigError, HostLostError

__all__ = ["Link", "accept", "connect"]

_HEAD = struct.Struct(">4sIQ")
_MAGIC = b"OVT1"
_LONGEST_HEADER = 64 << 20
_RETRY_S, _CONNECT_S, _GREETING_S = 0.1, 10.0, 10.0
# Seconds of silence before the first probe and between two, and how many may stay without an answer.
_PROBES = {"TCP_KEEPIDLE": 20, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 60_000}


class Link:
    """One end of a connection. One thread at a time may use it; `abort` may come from any."""

    def __init__(self, connection: socket.socket, peer: str) -> None:
        """Takes over a socket.

        Args:
            connection: connected.
            peer: what to call the other end in messages, such as "evaluator".
        """
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _PROBES.items():
            if hasattr(socket, name):  # not every system has all of them
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self._socket = connection
        self._peer = peer

    def send(self, message: Mapping[str, Any], parts: Sequence[npt.NDArray[Any]] = ()) -> None:
        """Sends a message and the bytes of arrays.

        Raises:
            HostLostError: if the peer has gone.
        """
        blocks = [np.ascontiguousarray(part).reshape(-1).view(np.uint8) for part in parts]
        sizes = [block.nbytes for block in blocks]
        header = json.dumps({"message": message, "sizes": sizes}, default=float).encode()
        try:
            self._socket.settimeout(None)
            self._socket.sendall(_HEAD.pack(_MAGIC, len(header), sum(sizes)) + header)
            for block in blocks:
                self._socket.sendall(block.data)
        except OSError as error:
            raise HostLostError(f"the {self._peer} has gone: {error}") from error

    def receive(
        self, sizes: Sequence[int] = (), *, timeout_s: float | None = None
    ) -> tuple[dict[str, Any], list[memoryview]]:
        """Waits for a message.

        Args:
            sizes: in bytes, of the parts that may come with it.
            timeout_s: how long the peer may be silent; None waits as long as the connection stands.

        Returns:
            The message and its parts; no parts if none came.

        Raises:
            HostLostError: if the peer has gone, is silent for too long, or says what cannot be understood.
        """
        try:
            self._socket.settimeout(timeout_s)
            magic, header_size, body_size = _HEAD.unpack(self._read(_HEAD.size))
            if magic != _MAGIC or header_size > _LONGEST_HEADER or body_size not in (0, sum(sizes)):
                raise ValueError("its message has another form")
            header = json.loads(self._read(header_size).tobytes())
            message, found = header["message"], header["sizes"]
            if not isinstance(message, dict) or found not in ([], list(sizes)) or sum(found) != body_size:
                raise ValueError("its message has another form")
            body = self._read(body_size)
        except TimeoutError as error:
            raise HostLostError(f"the {self._peer} does not answer within {timeout_s:g} s") from error
        except (OSError, EOFError) as error:
            raise HostLostError(f"the {self._peer} has gone: {error}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise HostLostError(f"the {self._peer} cannot be understood: {error}") from error
        ends = np.cumsum(found, dtype=int)
        return message, [body[end - size : end] for size, end in zip(found, ends, strict=True)]

    def abort(self) -> None:
        """Ends the connection under a thread that waits for the peer; that one gets HostLostError."""
        with contextlib.suppress(OSError):  # it has ended already
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes the connection. Idempotent."""
        self._socket.close()

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, size: int) -> memoryview:
        """Returns exactly so many bytes."""
        buffer = memoryview(bytearray(size))
        left = buffer
        while left:
            count = self._socket.recv_into(left)
            if count == 0:
                raise EOFError("the connection was closed")
            left = left[count:]
        return buffer


def connect(address: str, peer: str, *, timeout_s: float) -> Link:
    """Connects to a host, which may be started later.

    Args:
        address: `host:port`.
        peer: what to call it.
        timeout_s: how long to try.

    Raises:
        HostLostError: if nobody listens there in that time.
    """
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            left = max(0.1, min(_CONNECT_S, deadline - time.monotonic()))
            connection = socket.create_connection((host.strip("[]"), int(port)), timeout=left)
        except OSError as error:
            reason: object = error
        else:
            # Where nobody listens at a port of this machine, TCP may connect a socket with itself.
            if connection.getsockname() != connection.getpeername():
                return Link(connection, peer)
            connection.close()
            reason = "nobody listens there"
        if time.monotonic() >= deadline:
            raise HostLostError(
                f"the {peer} at {address} could not be reached for {timeout_s:g} s: {reason}; start it with "
                "the same program, and with a TF_CONFIG that differs in its task alone"
            )
        time.sleep(_RETRY_S)


def accept(address: str, peer: str, *, timeout_s: float) -> tuple[Link, dict[str, Any]]:
    """Waits for a host that connects to this one and sends a message.

    Whoever connects and says nothing, or something else than a message, is turned away.

    Args:
        address: `host:port` of this host; it listens at the port on all its networks.
        peer: what to call the other one.
        timeout_s: how long to wait.

    Returns:
        The connection and the first message.

    Raises:
        ClusterConfigError: if the port is taken.
        HostLostError: if nobody comes in that time.
    """
    port = int(address.rpartition(":")[2])
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    deadline = time.monotonic() + timeout_s
    try:
        door = socket.create_server(("", port), family=family, dualstack_ipv6=both)
    except OSError as error:
        raise ClusterConfigError(f"cannot listen at port {port} of {address}: {error.strerror}") from error
    with door:
        while (left := deadline - time.monotonic()) > 0:
            door.settimeout(left)
            try:
                connection, _ = door.accept()
            except TimeoutError:
                break
            link = Link(connection, peer)
            try:
                message, _ = link.receive(timeout_s=min(left, _GREETING_S))
            except HostLostError:
                link.close()
                continue
            return link, message
    raise HostLostError(f"the {peer} has not come to {address} within {timeout_s:g} s; was it started?")
