"""Where hosts listen: `host:port` as users give it, the addresses that it stands for, and sockets there."""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import socket
from typing import Any, NamedTuple

from overlap_train.errors import ClusterConfigError

__all__ = ["Endpoint", "is_loopback", "listen", "parse_endpoint", "resolve", "why"]

# Without halves of characters, which JSON can hold and no name of the system's.
_NAME = re.compile(r"[^\s/@\[\]:%\x00-\x1f\x7f\ud800-\udfff]{1,253}")
# A host without IPv6, a name with an address of another machine: the next address may do.
_NOT_HERE = (errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT, errno.EADDRNOTAVAIL)


class Endpoint(NamedTuple):
    """A host, by name or IP address without brackets, and a TCP port."""

    host: str
    port: int


def parse_endpoint(address: object, name: str = "address") -> Endpoint:
    """Return the host and the port of `host:port` or `[IPv6]:port`.

    Args:
        address: what the user gave.
        name: what to call it in messages.

    Raises:
        TypeError: if it is not a string.
        ClusterConfigError: a ValueError, if it has another form or the port is out of range.
    """
    if not isinstance(address, str):
        raise TypeError(f"{name} must be a string 'host:port'; got {address!r}")
    host, _, digits = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not _is_host(host) or not (digits.isascii() and digits.isdigit()):
        raise ClusterConfigError(f"{name} must be 'host:port'; got {address[:300]!r}")
    if len(digits) > 5 or not 1 <= int(digits) <= 65535:
        raise ClusterConfigError(f"the port of {name} must be from 1 to 65535; got {address[:300]!r}")
    return Endpoint(host, int(digits))


def is_loopback(host: str) -> bool:
    """Return whether an IP address belongs to the loopback interface; a name does not count as one."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.is_loopback


def resolve(endpoint: Endpoint) -> list[tuple[int, Any]]:
    """Return the address families and socket addresses of an endpoint, in the system's order.

    Raises:
        OSError: if the name is unknown.
    """
    if endpoint.host == "::":  # all of IPv4 is meant too, with a socket of its own
        return [
            (int(socket.AF_INET6), ("::", endpoint.port)),
            (int(socket.AF_INET), ("0.0.0.0", endpoint.port)),
        ]
    try:
        found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # a label that is too long for a name
        raise OSError(f"{endpoint.host[:300]!r} is not a host name: {error}") from error
    return list(dict.fromkeys((int(family), address) for family, _, _, _, address in found))


def listen(endpoint: Endpoint, *, backlog: int = 128) -> list[socket.socket]:
    """Return sockets that listen at each of an endpoint's addresses that this host has.

    Raises:
        ClusterConfigError: if the port is taken, or no address of the endpoint belongs to this host.
    """
    where = f"port {endpoint.port} of {endpoint.host}"
    listeners: list[socket.socket] = []
    reason = "its name has no address"
    try:
        for family, address in resolve(endpoint):
            try:
                listeners.append(socket.create_server(address, family=family, backlog=backlog))
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise
                reason = why(error)
    except OSError as error:
        for listener in listeners:
            listener.close()
        raise ClusterConfigError(f"cannot listen at {where}: {why(error)}") from error
    if not listeners:
        raise ClusterConfigError(
            f"cannot listen at {where}: {reason}. If that is not an address of this host, name one with "
            "join_cluster(bind_address=...); '0.0.0.0' or '::' listens on all interfaces"
        )
    return listeners


def why(error: OSError) -> str:
    """Return what an error of a socket says, without the address that Python adds to it."""
    if isinstance(error, socket.gaierror) or error.errno is None:
        return error.strerror or str(error)
    return os.strerror(error.errno)


def _is_host(host: str) -> bool:
    """Return whether a string may name a host: a name, or an IP address without brackets."""
    if ":" not in host:
        return _NAME.fullmatch(host) is not None
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True
