"""Messages and arrays between two hosts: what is lost, silent, strange or too large ends in a clear error."""

from __future__ import annotations

import json
import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest

from overlap_train.errors import ClusterConfigError, HostLostError
from overlap_train.parallel import link
from overlap_train.parallel.link import Link, accept, connect
from tests.parallel.test_hosts import free_ports

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def address():
    return f"localhost:{free_ports(1)[0]}"


@pytest.fixture
def executor():
    with ThreadPoolExecutor(2) as threads:
        yield threads


@pytest.fixture
def pair(address, executor):
    """Returns the two ends of a connection: the one that connected first."""
    accepted = executor.submit(accept, address, "chief", timeout_s=30)
    with connect(address, "evaluator", timeout_s=30) as first:
        first.send({"kind": "hello"})
        second, message = accepted.result()
        assert message == {"kind": "hello"}
        with second:
            yield first, second


def is_closed_by_peer(connection):
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:  # there was more that it had not read
        return True


def test_arrays_arrive_bit_by_bit(pair, executor):
    first, second = pair
    arrays = [
        np.arange(6, dtype="float32").reshape(2, 3),
        np.asarray(-0.0),
        np.zeros((0, 4), "int64"),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.asarray([True, False]),
        np.asarray([1.5, np.nan], ml_dtypes.bfloat16),
        np.ones(3_000_000, "uint8"),
    ]
    sent = executor.submit(first.send, {"loss": np.float32(0.5), "n": [1]}, arrays)
    message, parts = second.receive([array.nbytes for array in arrays])
    sent.result()
    assert message == {"loss": 0.5, "n": [1]}
    for part, array in zip(parts, arrays, strict=True):
        assert part.tobytes() == array.tobytes()


def test_nan_and_infinity_are_numbers(pair):
    first, second = pair
    first.send({"metrics": {"loss": float("nan"), "size": float("inf")}})
    metrics = second.receive()[0]["metrics"]
    assert np.isnan(metrics["loss"])
    assert metrics["size"] == np.inf


def test_parts_of_other_sizes_are_refused_before_memory_is_taken(pair):
    first, second = pair
    first.send({}, [np.zeros(5, "uint8")])
    with pytest.raises(HostLostError, match="the chief cannot be understood"):
        second.receive([4])


@pytest.mark.parametrize(
    "frame",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack(">4sIQ", b"OVT1", 2, 1 << 60) + b"{}",
        struct.pack(">4sIQ", b"OVT1", 1 << 31, 0),
        struct.pack(">4sIQ", b"OVT1", 2, 0) + b"{}",
        struct.pack(">4sIQ", b"OVT1", 3, 0) + b"\xff{}",
        struct.pack(">4sIQ", b"OVT1", 30, 0) + json.dumps({"message": [1], "sizes": []}).encode().ljust(30),
    ],
)
def test_a_stranger_is_turned_away_and_the_next_one_let_in(frame, address, executor):
    accepted = executor.submit(accept, address, "chief", timeout_s=30)
    connect(address, "evaluator", timeout_s=30).close()  # says nothing at all
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port))) as stranger:
        stranger.sendall(frame)
        assert is_closed_by_peer(stranger)
    with connect(address, "evaluator", timeout_s=30) as first:
        first.send({"kind": "hello"})
        second, message = accepted.result()
        second.close()
    assert message == {"kind": "hello"}


def test_who_closes_has_gone(pair):
    first, second = pair
    first.close()
    with pytest.raises(HostLostError, match="the chief has gone: the connection was closed"):
        second.receive()
    with pytest.raises(HostLostError, match="the evaluator has gone"):
        first.send({})
    first.abort()  # says nothing


def test_who_is_silent_for_too_long_is_named(pair):
    with pytest.raises(HostLostError, match=r"the evaluator does not answer within 0\.01 s"):
        pair[0].receive(timeout_s=0.01)


def test_abort_ends_a_wait_of_another_thread(pair, executor):
    waiting = executor.submit(pair[0].receive)
    pair[0].abort()
    with pytest.raises(HostLostError, match="the evaluator has gone"):
        waiting.result(timeout=30)


def test_who_is_started_later_is_waited_for(address, executor, monkeypatch):
    tried = threading.Event()
    monkeypatch.setattr(link.time, "sleep", lambda _: tried.set())
    connected = executor.submit(connect, address, "evaluator", timeout_s=30)
    assert tried.wait(30)
    accepted = executor.submit(accept, address, "chief", timeout_s=30)
    with connected.result() as first:
        first.send({})
        accepted.result()[0].close()


def test_who_does_not_come_is_named(address):
    with pytest.raises(HostLostError, match=r"the evaluator at .* could not be reached for 0\.01 s"):
        connect(address, "evaluator", timeout_s=0.01)
    with pytest.raises(HostLostError, match=r"the chief has not come to .* within 0\.01 s"):
        accept(address, "chief", timeout_s=0.01)


def test_a_taken_port_is_named(address):
    with (
        socket.create_server(("", int(address.rpartition(":")[2]))),
        pytest.raises(ClusterConfigError, match="cannot listen at port"),
    ):
        accept(address, "chief", timeout_s=1)


def test_a_connection_with_itself_is_none(address, monkeypatch):
    """What TCP may make of a connection to a free port of this machine."""

    class Mirror:
        closed = False

        def getsockname(self):
            return "::1", 5

        getpeername = getsockname

        def close(self):
            self.closed = True

    mirror = Mirror()
    monkeypatch.setattr(link.socket, "create_connection", lambda *_, **__: mirror)
    with pytest.raises(HostLostError, match="nobody listens there"):
        connect(address, "evaluator", timeout_s=0.01)
    assert mirror.closed


def test_a_link_is_closed_twice(pair):
    assert isinstance(pair[0], Link)
    pair[0].close()
    pair[0].close()
