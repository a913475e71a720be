"""The proof that two hosts share a key: no other one passes, by whatever it sends, repeats or sends back."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from overlap_train.parallel.handshake import Stranger, challenge, prove
from overlap_train.parallel.stream import Stream

from overlap_train.errors import HostMismatchError

pytestmark = pytest.mark.timeout(60)
KEY = b"k" * 32


@pytest.fixture
def executor():
    with ThreadPoolExecutor(2) as threads:
        yield threads


@pytest.fixture
def ends():
    """Returns both ends of a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        first = Stream(socket.create_connection(door.getsockname()))
        second = Stream(door.accept()[0])
        yield first, second
        first.close()
        second.close()


def in_a_minute():
    return time.monotonic() + 60


def test_two_hosts_with_the_key_know_each_other(ends, executor):
    proved = executor.submit(prove, ends[0], KEY, "evaluator", in_a_minute())
    assert challenge(ends[1], KEY, in_a_minute()) is True
    proved.result()


def test_another_key_is_refused_on_both(ends, executor):
    proved = executor.submit(prove, ends[0], b"x" * 32, "evaluator", in_a_minute())
    with pytest.raises(Stranger, match="another key"):
        challenge(ends[1], KEY, in_a_minute())
    with pytest.raises(HostMismatchError, match="the evaluator has another key"):
        proved.result()


def test_a_key_on_one_host_only_is_refused_on_both(ends, executor):
    proved = executor.submit(prove, ends[0], KEY, "evaluator", in_a_minute())
    with pytest.raises(Stranger, match="has a key, and this one has none"):
        challenge(ends[1], None, in_a_minute())
    with pytest.raises(HostMismatchError, match="the evaluator has no key"):
        proved.result()


def test_without_a_key_nothing_is_read(ends):
    ends[0].write(b"OVT1 and more", in_a_minute())
    assert challenge(ends[1], None, in_a_minute()) is False
    assert bytes(ends[1].read(13, in_a_minute())) == b"OVT1 and more"


def test_who_has_no_key_is_refused(ends):
    ends[0].write(b"OVT1 and more", in_a_minute())
    with pytest.raises(Stranger, match="has no key"):
        challenge(ends[1], KEY, in_a_minute())


def test_an_answer_cannot_be_used_again(ends, executor):
    """Records what a host sends, and sends the same in another conversation."""
    served = executor.submit(challenge, ends[1], KEY, in_a_minute())
    sent = []
    write = ends[0].write
    ends[0].write = lambda data, deadline: (sent.append(bytes(data)), write(data, deadline))
    prove(ends[0], KEY, "evaluator", in_a_minute())
    assert served.result() is True
    served = executor.submit(challenge, ends[1], KEY, in_a_minute())
    for piece in sent:
        write(piece, in_a_minute())
    with pytest.raises(Stranger, match="another key"):
        served.result()


def test_what_a_host_sends_cannot_be_sent_back_to_it(ends, executor):
    """A peer without the key that answers each piece with the same."""
    proved = executor.submit(prove, ends[0], KEY, "evaluator", in_a_minute())
    for _ in range(2):
        ends[1].write(ends[1].read(36, in_a_minute()), in_a_minute())
    with pytest.raises(HostMismatchError, match="another key"):
        proved.result()


def test_another_program_that_answers_is_named(ends, executor):
    proved = executor.submit(prove, ends[0], KEY, "evaluator", in_a_minute())
    ends[1].write(b"HTTP/1.1 400 Bad Request".ljust(36), in_a_minute())
    with pytest.raises(HostMismatchError, match="is it another program"):
        proved.result()


def test_who_is_silent_in_the_midst_is_given_up(ends):
    ends[0].write(b"OVA1" + bytes(10), in_a_minute())
    with pytest.raises(TimeoutError):
        challenge(ends[1], KEY, time.monotonic() + 0.01)
