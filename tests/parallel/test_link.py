"""Messages and arrays between two hosts: what is lost, silent, strange or too large ends in a clear error."""

from __future__ import annotations

import contextlib
import errno
import json
import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest
from overlap_train.parallel.credentials import Credentials, TLSFiles
from overlap_train.parallel.door import Door
from overlap_train.parallel.link import Refusal, accept, connect

from overlap_train.errors import ClusterConfigError, HostLostError, HostMismatchError
from overlap_train.parallel import link
from tests.parallel.test_credentials import make_certificate
from tests.parallel.test_hosts import free_ports
from tests.validation.test_remote import Link

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
        struct.pack(">4sIQ", b"OVT1", 200_000, 0) + b"[" * 200_000,
        struct.pack(">4sIQ", b"OVT1", 60 << 20, 0),
        struct.pack(">4sIQ", b"OVT1", 29, 0) + b'{"message": {}, "sizes": [0]}',
        struct.pack(">4sIQ", b"OVT1", 5000, 0) + b"1" * 5000,
        b"OVA1" + bytes(32),
    ],
)
def test_a_stranger_is_turned_away_and_the_next_one_let_in(frame, address, executor):
    accepted = executor.submit(accept, address, "chief", timeout_s=30)
    connect(address, "evaluator", timeout_s=30).close()  # says nothing at all
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port))) as stranger:
        with contextlib.suppress(OSError):  # who is turned away at once has no connection left to end
            stranger.sendall(frame)
            stranger.shutdown(socket.SHUT_WR)
        while not is_closed_by_peer(stranger):
            pass  # it is told why
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
    with pytest.raises(HostLostError, match="no program listens there"):
        connect(address, "evaluator", timeout_s=0.01)
    assert mirror.closed


def test_a_link_is_closed_twice(pair):
    assert isinstance(pair[0], Link)
    pair[0].close()
    pair[0].close()


class Dripping:
    """A connection from which one byte comes each second, by a clock of its own."""

    def __init__(self, data):
        self.now_s = 0.0
        self._left = list(data)

    def monotonic(self):
        return self.now_s

    def recv_into(self, buffer):
        assert self.now_s < 1000, "it is still listened to"
        self.now_s += 1
        buffer[0] = self._left.pop(0)
        return 1

    def setsockopt(self, *_):
        pass

    settimeout = setsockopt


@pytest.mark.parametrize(("timeout_s", "heard_s"), [(3.0, 3), (None, 62)])
def test_a_message_that_comes_in_drips_is_given_up(timeout_s, heard_s, monkeypatch):
    dripping = Dripping(struct.pack(">4sIQ", b"OVT1", 5000, 0) + b" " * 5000)
    monkeypatch.setattr(link.time, "monotonic", dripping.monotonic)
    with pytest.raises(HostLostError, match="the chief does not answer within"):
        Link(dripping, "chief").receive(timeout_s=timeout_s)
    assert dripping.now_s <= heard_s


def test_who_takes_nothing_is_given_up(pair):
    with pytest.raises(HostLostError, match=r"has not taken 100000000 bytes within 0\.05 s"):
        pair[0].send({}, [np.zeros(100_000_000, "uint8")], timeout_s=0.05)


def test_a_machine_that_vanished_is_named(pair, monkeypatch):
    """What TCP's probes end with is no time-out of ours."""

    def vanish(*_):
        raise OSError(errno.ETIMEDOUT, "Connection timed out")

    monkeypatch.setattr(pair[0]._stream, "read", vanish)
    with pytest.raises(HostLostError, match=r"the evaluator has gone: .*timed out"):
        pair[0].receive()


def test_silent_and_slow_ones_keep_the_expected_one_waiting_for_nothing(address, executor):
    accepted = executor.submit(accept, address, "chief", timeout_s=30)
    connect(address, "evaluator", timeout_s=30).close()
    host, _, port = address.rpartition(":")
    strangers = [socket.create_connection((host, int(port))) for _ in range(40)]
    for number, stranger in enumerate(strangers[-16:]):
        stranger.sendall(struct.pack(">4sIQ", b"OVT1", 1000, 0)[:number])
    with connect(address, "evaluator", timeout_s=30) as first:
        first.send({"kind": "hello"})
        accepted.result()[0].close()
    for stranger in strangers:
        stranger.close()


KEY = Credentials(key=b"k" * 32)


def test_hosts_with_the_same_key_meet(address, executor):
    judged = []
    accepted = executor.submit(
        accept,
        address,
        "chief",
        timeout_s=30,
        credentials=KEY,
        check=lambda message, authenticated: judged.append((message, authenticated)),
    )
    with connect(address, "evaluator", timeout_s=30, credentials=KEY) as first:
        first.send({"kind": "hello"})
        with accepted.result()[0] as second:
            second.send({"kind": "welcome"})
            assert first.receive(timeout_s=30)[0] == {"kind": "welcome"}
    assert judged == [({"kind": "hello"}, True)]


def test_who_is_refused_is_told_less_than_this_host_says(address, executor, caplog):
    def check(message, authenticated):
        raise Refusal("mine is red", told="yours is another")

    accepted = executor.submit(accept, address, "chief", timeout_s=2, credentials=Credentials(), check=check)
    with connect(address, "evaluator", timeout_s=30, credentials=Credentials()) as first:
        first.send({"kind": "hello"})
        assert first.receive(timeout_s=30)[0] == {"kind": "refused", "error": "yours is another"}
    with pytest.raises(HostLostError, match=r"1 were turned away, the last from .*: mine is red"):
        accepted.result()
    assert "waiting for another chief: mine is red" in caplog.text


def test_the_key_of_the_environment_is_used_without_being_passed(address, executor, monkeypatch):
    monkeypatch.setenv("OVERLAP_TRAIN_CLUSTER_KEY", "x" * 32)
    accepted = executor.submit(accept, address, "chief", timeout_s=30)
    with connect(address, "evaluator", timeout_s=30, credentials=Credentials()) as without:
        without.send({"kind": "hello"})
        assert "has no key, and this one has" in without.receive(timeout_s=30)[0]["error"]
    with pytest.raises(HostMismatchError, match="another key"):
        connect(address, "evaluator", timeout_s=30, credentials=KEY)
    with connect(address, "evaluator", timeout_s=30) as first:
        first.send({"kind": "hello"})
        accepted.result()[0].close()


def test_another_machine_needs_a_key(address, monkeypatch):
    monkeypatch.delenv("OVERLAP_TRAIN_CLUSTER_KEY", raising=False)
    monkeypatch.setattr(link, "is_loopback", lambda _: False)
    with pytest.raises(ClusterConfigError, match="there is no key"):
        accept(address, "chief", timeout_s=30)
    host, _, port = address.rpartition(":")
    with (
        socket.create_server((host, int(port))),
        pytest.raises(ClusterConfigError, match="there is no key"),
    ):
        connect(address, "evaluator", timeout_s=30)


def test_all_interfaces_need_a_key(address, monkeypatch):
    monkeypatch.delenv("OVERLAP_TRAIN_CLUSTER_KEY", raising=False)
    with pytest.raises(ClusterConfigError, match=r"there is no key, and 0\.0\.0\.0 is not a loopback"):
        accept(address, "chief", timeout_s=30, bind_address="0.0.0.0")


@pytest.mark.parametrize("timeout_s", [0, -1.0, float("nan"), float("inf")])
def test_a_time_out_that_cannot_be_meant_is_refused(timeout_s, address):
    for meet in (accept, connect):
        with pytest.raises(ValueError, match="timeout_s must be"):
            meet(address, "chief", timeout_s=timeout_s)


def tls_of(directory, name="DNS:localhost"):
    certificate, key = make_certificate(directory, name)
    return Credentials(key=KEY.key, tls=TLSFiles(certificate, key, certificate))


def test_messages_travel_encrypted(address, executor, tmp_path):
    credentials = tls_of(tmp_path)
    accepted = executor.submit(accept, address, "chief", timeout_s=30, credentials=credentials)
    connect(address, "evaluator", timeout_s=30, credentials=credentials).close()
    with socket.create_connection(("localhost", int(address.rpartition(":")[2]))) as plain:
        plain.sendall(struct.pack(">4sIQ", b"OVT1", 29, 0) + b'{"message": {}, "sizes": []}  ')
        while not is_closed_by_peer(plain):
            pass  # TLS tells it that it is not understood
    array = np.arange(3_000_000, dtype="int32")
    with connect(address, "evaluator", timeout_s=30, credentials=credentials) as first:
        first.send({"kind": "hello"})
        with accepted.result()[0] as second:
            sent = executor.submit(first.send, {}, [array])
            assert second.receive([array.nbytes])[1][0].tobytes() == array.tobytes()
            sent.result()
            waiting = executor.submit(second.receive)
            second.abort()
            with pytest.raises(HostLostError, match="the chief has gone"):
                waiting.result(timeout=30)


class Trusting(TLSFiles):
    """What a chief would be that takes the certificate of any host."""

    def client_context(self):
        context = super().client_context()
        context.check_hostname = False
        return context


@pytest.mark.parametrize("name", ["DNS:elsewhere", "IP:192.0.2.1"])
def test_the_certificate_of_another_host_is_refused(name, address, executor, tmp_path):
    credentials = tls_of(tmp_path, name)
    accepted = executor.submit(accept, address, "chief", timeout_s=30, credentials=credentials)
    with pytest.raises(HostMismatchError, match="the certificate of the evaluator is not accepted"):
        connect(address, "evaluator", timeout_s=30, credentials=credentials)
    trusting = Credentials(KEY.key, tls=Trusting(**vars(credentials.tls)))
    with connect(address, "evaluator", timeout_s=30, credentials=trusting) as first:
        first.send({"kind": "hello"})
        accepted.result()[0].close()


@pytest.mark.parametrize("keys", [(True, True), (False, False), (True, False), (False, True)])
@pytest.mark.parametrize("listens", [True, False])
def test_tls_on_one_host_only_is_said_on_both(listens, keys, address, executor, tmp_path, monkeypatch):
    """At once: it is no reason to wait for a host that is started later."""
    tls = tls_of(tmp_path).tls
    own, other = (KEY.key if key else None for key in keys)
    there, here = (
        Credentials(own, tls=tls if listens else None),
        Credentials(other, tls=None if listens else tls),
    )
    turned_away = []
    monkeypatch.setattr(Door, "_turn_away", _noting(Door._turn_away, turned_away))
    accepted = executor.submit(accept, address, "chief", timeout_s=60, credentials=there)
    try:
        if other is None and listens:  # it hears it as the answer to its first message
            with connect(address, "evaluator", timeout_s=60, credentials=here) as link:
                link.send({"kind": "hello"})
                assert "does not speak TLS, and this one does" in link.receive(timeout_s=60)[0]["error"]
        else:
            says = "speaks TLS, and this host does not" if listens else "does not speak TLS with this host"
            with pytest.raises(HostMismatchError, match=f"the evaluator {says}"):
                connect(address, "evaluator", timeout_s=60, credentials=here)
    finally:
        with connect(address, "evaluator", timeout_s=60, credentials=there) as link:
            link.send({"kind": "hello"})
            accepted.result()[0].close()
    says = "does not speak TLS, and this one does" if listens else "speaks TLS, and this one does not"
    assert [str(error) for error in turned_away if says not in str(error)] == []
    assert len(turned_away) == 1


def _noting(method, errors):
    def note(door, stream, address, error):
        errors.append(error)
        method(door, stream, address, error)

    return note
