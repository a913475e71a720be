"""Whoever connects is greeted next to others: the silent, the strange and the many keep no other one out."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from overlap_train.parallel.door import Door

from overlap_train.parallel import door as door_module

pytestmark = pytest.mark.timeout(60)


def read_name(stream, deadline):
    """Lets in who says that it is the chief."""
    name = bytes(stream.read(5, deadline))
    if name != b"chief":
        raise ValueError(name)
    return stream


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0), backlog=64) as one:
        yield one


@pytest.fixture
def executor():
    with ThreadPoolExecutor(2) as threads:
        yield threads


@pytest.fixture
def visit(listener):
    """Returns a function that connects, and closes all such connections at the end."""
    with contextlib.ExitStack() as visitors:
        yield lambda: visitors.enter_context(socket.create_connection(listener.getsockname()))


def test_silent_ones_keep_nobody_out(listener, executor, visit):
    with Door([listener], read_name, most=4) as door:
        waiting = executor.submit(door.wait, 60)
        for _ in range(20):
            visit()
        visit().sendall(b"chief")
        stream = waiting.result()
        stream.close()
    assert door.turned_away >= 16


def test_the_oldest_one_goes_when_there_are_too_many(listener, executor, visit):
    with Door([listener], read_name, most=2) as door:
        waiting = executor.submit(door.wait, 60)
        first, second = visit(), visit()
        third = visit()
        assert first.recv(1) == b"", "it was there before the others"
        second.sendall(b"other")
        assert second.recv(1) == b""
        third.sendall(b"chief")
        waiting.result().close()


@pytest.mark.parametrize("error", [KeyError("kind"), RecursionError(), MemoryError(), AttributeError("x")])
def test_whatever_a_greeting_raises_the_next_one_is_let_in(error, listener, executor, visit):
    def greet(stream, deadline):
        if bytes(stream.read(1, deadline)) == b"x":
            raise error
        return stream

    with Door([listener], greet) as door:
        waiting = executor.submit(door.wait, 60)
        strange = visit()
        strange.sendall(b"x")
        assert strange.recv(1) == b""
        visit().sendall(b"y")
        waiting.result().close()
    assert door.turned_away == 1
    assert door.reason.startswith("127.0.0.1: ")


def test_of_two_that_pass_one_is_let_in(listener, executor, visit):
    both = threading.Barrier(2)

    def greet(stream, deadline):
        both.wait(30)
        return stream

    with Door([listener], greet) as door:
        waiting = executor.submit(door.wait, 60)
        visitors = [visit(), visit()]
        stream = waiting.result()
    assert door.turned_away == 1
    stream.write(b"!", time.monotonic() + 30)
    assert sorted(visitor.recv(1) for visitor in visitors) == [b"", b"!"]
    stream.close()


def test_a_closed_door_leaves_no_greeting_behind(listener, executor, visit):
    with Door([listener], read_name) as door:
        waiting = executor.submit(door.wait, 60)
        silent = visit()
        visit().sendall(b"chief")
        waiting.result().close()
    assert silent.recv(1) == b""
    for thread in threading.enumerate():
        if thread.name == "overlap-greeting":  # which has handed its peer on, and is about to end
            thread.join(10)
            assert not thread.is_alive()
    door.close()


def test_when_no_threads_are_to_be_had_the_host_lives_on(listener, executor, visit, monkeypatch):
    start, refused = threading.Thread.start, []

    def refuse_once(self):
        if self.name == "overlap-greeting" and not refused:
            refused.append(self)
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", refuse_once)
    with Door([listener], read_name) as door:
        waiting = executor.submit(door.wait, 60)
        assert visit().recv(1) == b""
        visit().sendall(b"chief")
        waiting.result().close()


def test_when_no_files_are_to_be_had_the_host_lives_on(executor, listener, visit, monkeypatch):
    monkeypatch.setattr(door_module.time, "sleep", lambda _: None)
    refused = []

    class Poor:
        """A listener that is refused its first file descriptor."""

        def accept(self):
            if not refused:
                refused.append(True)
                raise OSError(24, "Too many open files")
            return listener.accept()

        def fileno(self):
            return listener.fileno()

        def setblocking(self, flag):
            listener.setblocking(flag)

        def close(self):
            listener.close()

    with Door([Poor()], read_name) as door:
        waiting = executor.submit(door.wait, 60)
        visit().sendall(b"chief")
        waiting.result().close()
    assert refused


def test_a_door_that_cannot_be_made_leaves_the_port_free(listener, monkeypatch):
    def none_left():
        raise OSError(errno.EMFILE, "Too many open files")

    address = listener.getsockname()
    monkeypatch.setattr(socket, "socketpair", none_left)
    with pytest.raises(OSError, match="Too many open files"):
        Door([listener], read_name)
    socket.create_server(address).close()
