"""A connected socket with a deadline for all that is read or written, however it drips."""

from __future__ import annotations

import socket
import threading
import time

import pytest
from overlap_train.parallel.stream import Stream

WAIT_S = 60.0
PAST = 0.0  # of time.monotonic()


def soon():
    return time.monotonic() + WAIT_S


@pytest.fixture
def ends():
    """Returns a stream and the socket at its other end."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        mine = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    stream = Stream(mine)
    with theirs:
        yield stream, theirs
    stream.close()


def test_exactly_as_many_bytes_are_read_however_they_come(ends):
    stream, theirs = ends
    for part in (b"ab", b"cde", b"f"):
        theirs.sendall(part)
    assert bytes(stream.read(4, soon())) == b"abcd"
    assert bytes(stream.read(2, None)) == b"ef"
    assert bytes(stream.read(0, soon())) == b""


def test_what_was_put_back_is_read_first(ends):
    stream, theirs = ends
    stream.unread(b"cd")
    stream.unread(b"ab")
    theirs.sendall(b"ef")
    assert bytes(stream.read(3, PAST)) == b"abc"
    assert bytes(stream.read(3, soon())) == b"def"


def test_bytes_that_are_missing_at_the_deadline_are_an_error(ends):
    stream, theirs = ends
    theirs.sendall(b"abc")
    with pytest.raises(TimeoutError, match="the deadline has passed"):
        stream.read(4, PAST)
    with pytest.raises(TimeoutError):
        stream.read(4, time.monotonic() + 0.05)


def test_a_peer_that_closes_before_is_told(ends):
    stream, theirs = ends
    theirs.sendall(b"ab")
    theirs.shutdown(socket.SHUT_WR)
    with pytest.raises(EOFError, match="the connection was closed"):
        stream.read(3, soon())


def test_much_is_written_whole(ends):
    stream, theirs = ends
    data, received = bytes(range(256)) * 20_000, bytearray()

    def receive():
        while len(received) < len(data):
            received.extend(theirs.recv(1 << 16))

    reader = threading.Thread(target=receive)
    reader.start()
    stream.write(memoryview(data), soon())
    reader.join(WAIT_S)
    assert received == data


def test_a_peer_that_takes_nothing_is_given_up(ends):
    stream, _ = ends
    with pytest.raises(TimeoutError):
        stream.write(bytes(1 << 26), time.monotonic() + 0.05)
    with pytest.raises(TimeoutError):
        stream.write(b"a", PAST)
    stream.write(b"", PAST)


def test_abort_ends_a_read_of_another_thread(ends):
    stream, _ = ends
    ended, begun = [], threading.Event()

    def read():
        begun.set()
        try:
            stream.read(1, soon())
        except (EOFError, OSError) as error:
            ended.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    assert begun.wait(WAIT_S)
    stream.abort()
    stream.abort()
    reader.join(WAIT_S)
    assert len(ended) == 1


def test_an_aborted_connection_is_not_secured(ends):
    import ssl

    stream, _ = ends
    stream.abort()
    with pytest.raises(ConnectionAbortedError, match="the connection was ended"):
        stream.secure(ssl.create_default_context(), soon(), server_name="a")


@pytest.mark.parametrize("closes", [True, False])
def test_draining_ends_when_the_peer_closes_or_enough_was_read(ends, closes):
    stream, theirs = ends
    theirs.sendall(b"a" * 1000)
    if closes:
        theirs.shutdown(socket.SHUT_WR)
    stream.drain(1 << 20 if closes else 1000, soon())
    assert theirs.recv(1) == b""  # it was told that nothing more comes


def test_closing_twice_does_nothing(ends):
    stream, _ = ends
    stream.close()
    stream.close()
