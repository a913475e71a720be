"""Addresses as users give them: what no host can listen at is refused by name, before anything starts."""

from __future__ import annotations

import errno
import os
import socket

import pytest
from overlap_train.parallel.endpoints import Endpoint, is_loopback, listen, parse_endpoint

from overlap_train.errors import ClusterConfigError
from overlap_train.parallel import endpoints
from tests.parallel.test_hosts import free_ports


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("localhost:1", ("localhost", 1)),
        ("[::1]:65535", ("::1", 65535)),
        ("::1:2222", ("::1", 2222)),
        ("pod-0.service.name_space:02222", ("pod-0.service.name_space", 2222)),
    ],
)
def test_an_address_is_taken_apart(address, expected):
    assert parse_endpoint(address) == expected


@pytest.mark.parametrize(
    "address",
    [
        *("", ":", "a", "a:", ":1", "a:b", "a b:1", "a\n:1", "a/b:1", "[a]b:1", "a:1:2"),
        *("a:-1", "a:+1", "a:1.0", "a:٣", "a:²", "\0:1", "[::1:1", "[]:1", f"{'a' * 300}:1"),
        pytest.param("\ud800:1", id="half a character"),
    ],
)
def test_what_is_no_address_is_refused_by_name(address):
    with pytest.raises(ClusterConfigError, match="worker 1 must be 'host:port'"):
        parse_endpoint(address, "worker 1")


@pytest.mark.parametrize("port", ["0", "65536", "99999", "1" * 5000])
def test_a_port_out_of_range_is_refused_by_name(port):
    with pytest.raises(ClusterConfigError, match="the port of worker 1 must be from 1 to 65535"):
        parse_endpoint(f"a:{port}", "worker 1")


@pytest.mark.parametrize("address", [None, 2222, b"a:1", ["a:1"], ("a", 1)])
def test_an_address_of_another_type_is_refused_by_name(address):
    with pytest.raises(TypeError, match="worker 1 must be a string 'host:port'"):
        parse_endpoint(address, "worker 1")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.0.1", "::1", "::ffff:127.0.0.1"])
def test_loopback_is_known(host):
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "192.0.2.1", "fe80::1%eth0", "localhost", "127.0.0.1.evil"]
)
def test_what_others_can_reach_or_name_is_no_loopback(host):
    assert not is_loopback(host)


def test_only_the_given_address_is_listened_at():
    port = free_ports(1)[0]
    listeners = listen(Endpoint("127.0.0.1", port))
    assert [listener.getsockname() for listener in listeners] == [("127.0.0.1", port)]
    listeners[0].close()


def without_ipv6(monkeypatch):
    """Makes this host one whose kernel has no IPv6."""
    make = socket.socket.__init__

    def refuse(self, family=-1, *arguments, **options):
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
        make(self, family, *arguments, **options)

    monkeypatch.setattr(socket.socket, "__init__", refuse)


def test_a_host_without_ipv6_listens_at_its_other_addresses(monkeypatch):
    port = free_ports(1)[0]
    found = [(int(socket.AF_INET6), ("::1", port)), (int(socket.AF_INET), ("127.0.0.1", port))]
    monkeypatch.setattr(endpoints, "resolve", lambda _: found)
    without_ipv6(monkeypatch)
    (listener,) = listen(Endpoint("localhost", port))
    assert listener.getsockname()[0] == "127.0.0.1"
    listener.close()


def test_all_interfaces_are_listened_at_when_asked_for():
    port = free_ports(1)[0]
    listeners = listen(Endpoint("::", port))
    assert ("0.0.0.0", port) in [listener.getsockname() for listener in listeners]
    for listener in listeners:
        listener.close()


@pytest.mark.parametrize("host", ["192.0.2.77", "no-such-name.invalid", "a" * 70])
def test_an_address_of_another_host_is_named(host):
    with pytest.raises(ClusterConfigError, match=f"cannot listen at port 2222 of {host}"):
        listen(Endpoint(host, 2222))


def test_a_port_that_one_address_has_taken_leaves_no_socket_behind(monkeypatch):
    port, free = free_ports(2)
    found = [(int(socket.AF_INET), ("127.0.0.1", free)), (int(socket.AF_INET), ("127.0.0.1", port))]
    monkeypatch.setattr(endpoints, "resolve", lambda _: found)
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(ClusterConfigError, match="in use"),
    ):
        listen(Endpoint("localhost", port))
    socket.create_server(("127.0.0.1", free)).close()
