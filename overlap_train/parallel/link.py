"""A connection between two hosts that carries messages of JSON and the bytes of arrays; nothing is unpickled.

A frame has a head of 16 bytes, big-endian: the letters `OVT1`, the header's length (uint32) and the body's
(uint64). Then comes the header, JSON in UTF-8, with the message and the sizes of the parts, and the body,
which is the parts one after another. A reader says beforehand how large the parts are that it expects, so
no peer can make it take up more memory than that. A message that has begun must end: in a minute, and a
second more for each 100 kB.

A peer that dies closes its connections, which ends every wait here at once. One that vanishes with its
machine is found out by TCP's own probes, after a minute.
"""

from __future__ import annotations

import json
import logging
import socket
import ssl
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from overlap_train._support.arguments import require_seconds
from overlap_train._support.closing import Closing
from overlap_train.errors import HostLostError
from overlap_train.parallel.credentials import Credentials, read_credentials
from overlap_train.parallel.door import Door
from overlap_train.parallel.endpoints import is_loopback, listen, parse_endpoint
from overlap_train.parallel.handshake import Stranger, accept_tls, challenge, prove, require_tls
from overlap_train.parallel.messages import encoded
from overlap_train.parallel.stream import Stream

__all__ = ["Check", "Link", "MisunderstoodError", "Refusal", "accept", "connect"]

_HEAD = struct.Struct(">4sIQ")
_MAGIC = b"OVT1"
_LONGEST_HEADER, _LONGEST_HELLO = 64 << 20, 1 << 20
_RETRY_S, _CONNECT_S, _GREETING_S = 0.1, 10.0, 10.0
_MESSAGE_S, _SLOWEST_BYTES_PER_S = 60.0, 100_000
_REFUSAL_S = 1.0
_log = logging.getLogger(__name__)


class MisunderstoodError(HostLostError):
    """What came is no message of this package's."""


class Refusal(Exception):
    """A peer is turned away, and told why; this host waits for another one.

    Attributes:
        told: what the peer is told, where the message is for this host alone.
    """

    def __init__(self, message: str, *, told: str | None = None) -> None:
        super().__init__(message)
        self.told = told


# Judges a first message, given whether the peer has proved that it has the key. Raises Refusal for a message
# that the expected peer would not send; returns an exception to end the wait with.
Check = Callable[[Mapping[str, Any], bool], Exception | None]


class Link(Closing):
    """One end of a connection. One thread at a time may use it; `abort` may come from any."""

    def __init__(self, connection: socket.socket | Stream, peer: str) -> None:
        """Take over a socket.

        Args:
            connection: connected.
            peer: what to call the other end in messages, such as "evaluator".
        """
        self._stream = connection if isinstance(connection, Stream) else Stream(connection)
        self._peer = peer

    def send(
        self,
        message: Mapping[str, Any],
        parts: Sequence[npt.NDArray[Any]] = (),
        *,
        timeout_s: float | None = None,
    ) -> None:
        """Send a message and the bytes of arrays.

        Args:
            message: of what JSON knows; what else there is in it comes as `encoded` makes it.
            parts: arrays.
            timeout_s: seconds for all of it; None means a minute, and a second more for each 100 kB.

        Raises:
            HostLostError: if the peer has gone, or takes nothing for too long.
        """
        blocks = [np.ascontiguousarray(part).reshape(-1).view(np.uint8) for part in parts]
        sizes = [block.nbytes for block in blocks]
        header = encoded({"message": message, "sizes": sizes})
        allowed_s = timeout_s if timeout_s is not None else _allowed_s(len(header) + sum(sizes))
        deadline = time.monotonic() + allowed_s
        try:
            self._stream.write(_HEAD.pack(_MAGIC, len(header), sum(sizes)) + header, deadline)
            for block in blocks:
                self._stream.write(block.data, deadline)
        except OSError as error:
            if _is_deadline(error):
                late = f"the {self._peer} has not taken {sum(sizes)} bytes within {allowed_s:g} s"
                raise HostLostError(late) from error
            raise HostLostError(f"the {self._peer} has gone: {error}") from error

    def receive(
        self,
        sizes: Sequence[int] = (),
        *,
        timeout_s: float | None = None,
        longest_header: int = _LONGEST_HEADER,
    ) -> tuple[dict[str, Any], list[memoryview]]:
        """Wait for a message.

        Args:
            sizes: in bytes, of the parts that may come with it.
            timeout_s: seconds until the whole message must be here; None waits for its first byte as long
                as the connection stands.
            longest_header: bytes that the message may have, without its parts.

        Returns:
            The message and its parts; no parts if none came.

        Raises:
            MisunderstoodError: a HostLostError, if what comes is no message.
            HostLostError: if the peer has gone, or takes too long.
        """
        allowed_s = timeout_s if timeout_s is not None else _MESSAGE_S
        try:
            if timeout_s is None:
                self._stream.unread(bytes(self._stream.read(1, None)))
            began_s = time.monotonic()
            deadline = began_s + allowed_s
            magic, header_size, body_size = _HEAD.unpack(self._stream.read(_HEAD.size, deadline))
            if magic != _MAGIC or header_size > longest_header or body_size not in (0, sum(sizes)):
                raise ValueError("its message has another form")
            if timeout_s is None:
                allowed_s = _allowed_s(header_size + body_size)
                deadline = began_s + allowed_s
            message, expected = _parse(self._stream.read(header_size, deadline), sizes)
            if sum(expected) != body_size:
                raise ValueError("its message has another form")
            body = self._stream.read(body_size, deadline)
        except (OSError, EOFError) as error:
            if _is_deadline(error):
                raise HostLostError(f"the {self._peer} does not answer within {allowed_s:g} s") from error
            raise HostLostError(f"the {self._peer} has gone: {error}") from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise MisunderstoodError(f"the {self._peer} cannot be understood: {error}") from error
        ends = np.cumsum(expected, dtype=int)
        return message, [body[end - size : end] for size, end in zip(expected, ends, strict=True)]

    def turn_away(self, reason: str) -> None:
        """Tell the peer why it is turned away, if it listens, and say nothing more."""
        deadline = time.monotonic() + _REFUSAL_S
        try:
            self.send({"kind": "refused", "error": reason}, timeout_s=_REFUSAL_S)
        except HostLostError:
            return
        self._stream.drain(_LONGEST_HELLO, deadline)

    def abort(self) -> None:
        """End the connection under a thread that waits for the peer; that one gets HostLostError."""
        self._stream.abort()

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._stream.close()


def connect(
    address: str,
    peer: str,
    *,
    timeout_s: float,
    credentials: Credentials | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> Link:
    """Connect to a host, which may be started later, and prove who this one is if there is a key.

    Args:
        address: `host:port`.
        peer: what to call it.
        timeout_s: how long to try.
        credentials: the key and TLS; None reads the key from the environment.
        stopped: called between two tries; True ends them.

    Raises:
        HostLostError: if no host listens there in that time.
        HostMismatchError: if the one that does has no key, or another, or another certificate.
        ClusterConfigError: a ValueError, if the address has another form, or there is no key and it is not
            on this machine.
    """
    endpoint = parse_endpoint(address)
    timeout_s = require_seconds("timeout_s", timeout_s)
    credentials = credentials if credentials is not None else read_credentials()
    deadline = time.monotonic() + timeout_s
    while True:
        left = max(0.1, min(_CONNECT_S, deadline - time.monotonic()))
        try:
            stream = _open(endpoint.host, endpoint.port, peer, credentials, left)
        except (OSError, EOFError, UnicodeError) as error:
            reason: object = error
        else:
            return Link(stream, peer)
        if time.monotonic() >= deadline or stopped():
            raise HostLostError(
                f"the {peer} at {address} could not be reached for {timeout_s:g} s: {reason}; start it with "
                "the same program, and with a TF_CONFIG that differs in its task alone"
            )
        time.sleep(_RETRY_S)


def accept(
    address: str,
    peer: str,
    *,
    timeout_s: float,
    credentials: Credentials | None = None,
    bind_address: str | None = None,
    check: Check | None = None,
) -> tuple[Link, dict[str, Any]]:
    """Wait for a host that connects to this one, proves that it has the key, and sends a message.

    Whoever connects and does something else is turned away. Several are greeted at once, each for ten
    seconds at most.

    Args:
        address: `host:port` of this host.
        peer: what to call the other one.
        timeout_s: how long to wait.
        credentials: the key and TLS; None reads the key from the environment.
        bind_address: the name or IP address of this host at which to listen; None means that of `address`.
        check: judges the first message, on a thread of its own; None takes any.

    Returns:
        The connection and the first message.

    Raises:
        ClusterConfigError: a ValueError, if the port is taken or this host has no such address, if the
            address has another form, or if there is no key and other machines can connect.
        HostLostError: if no such host comes in that time.
        Exception: what `check` returned.
    """
    endpoint = parse_endpoint(address)
    timeout_s = require_seconds("timeout_s", timeout_s)
    credentials = credentials if credentials is not None else read_credentials()
    context = credentials.tls.server_context() if credentials.tls is not None else None
    listeners = listen(endpoint if bind_address is None else endpoint._replace(host=bind_address))
    found = None

    def greet(stream: Stream, deadline: float) -> tuple[Link, dict[str, Any], Exception | None]:
        return _greet(stream, peer, context, credentials.key, check, deadline)

    with Door(listeners, greet, greeting_s=_GREETING_S) as door:
        hosts = [listener.getsockname()[0] for listener in listeners]
        credentials.check_place(", ".join(hosts), loopback=all(map(is_loopback, hosts)))
        found = door.wait(timeout_s)
    if found is None:
        last = (
            f" {door.turned_away} were turned away, the last from {door.reason}." if door.turned_away else ""
        )
        raise HostLostError(
            f"the {peer} has not come to {address} within {timeout_s:g} s; was it started?{last}"
        )
    link, message, error = found
    if error is not None:
        with link:
            link.turn_away(str(error))
        raise error
    return link, message


def _open(host: str, port: int, peer: str, credentials: Credentials, timeout_s: float) -> Stream:
    """Connect once, and agree on TLS and the key."""
    deadline = time.monotonic() + timeout_s
    connection = socket.create_connection((host, port), timeout=timeout_s)
    try:
        # Where no program listens at a port of this machine, TCP may connect a socket with itself.
        if connection.getsockname() == connection.getpeername():
            raise ConnectionRefusedError("no program listens there")
        there = connection.getpeername()[0]
        credentials.check_place(f"{there}, where the {peer} is,", loopback=is_loopback(there))
        stream = Stream(connection)
    except BaseException:
        connection.close()
        raise
    try:
        if credentials.tls is not None:
            require_tls(stream, host, peer, credentials.tls.client_context(), deadline)
        if credentials.key is not None:
            prove(stream, credentials.key, peer, deadline)
    except BaseException:
        stream.close()
        raise
    return stream


def _greet(
    stream: Stream,
    peer: str,
    context: ssl.SSLContext | None,
    key: bytes | None,
    check: Check | None,
    deadline: float,
) -> tuple[Link, dict[str, Any], Exception | None]:
    """Return the connection to a host, its first message, and what to end the wait with, or raise."""
    link = Link(stream, peer)
    try:
        accept_tls(stream, context, deadline)
        authenticated = challenge(stream, key, deadline)
        left = max(1e-3, deadline - time.monotonic())
        message, _ = link.receive(timeout_s=left, longest_header=_LONGEST_HELLO)
        return link, message, check(message, authenticated) if check is not None else None
    except (Refusal, Stranger) as error:
        told = getattr(error, "told", None)
        if told is not None:  # most likely the expected peer, whose user looks here for the reason
            _log.warning("waiting for another %s: %s", peer, error)
        link.turn_away(told or str(error))
        raise


def _allowed_s(size: int) -> float:
    """Return how long a message of that many bytes may take."""
    return _MESSAGE_S + size / _SLOWEST_BYTES_PER_S


def _is_deadline(error: Exception) -> bool:
    """Return whether a deadline of this host has passed, rather than TCP's own, which has a number."""
    return isinstance(error, TimeoutError) and error.errno is None


def _parse(header: memoryview, sizes: Sequence[int]) -> tuple[dict[str, Any], Sequence[int]]:
    """Return the message of a header and the sizes of its parts, which are none or the expected ones."""
    content = json.loads(str(header, "utf-8"))
    message, found = content["message"], content["sizes"]
    if not isinstance(message, dict) or found not in ([], list(sizes)):
        raise ValueError("its message has another form")
    return message, sizes if found else ()
