"""A wait of the main thread is ended from outside, in time or never, and signals are heard beside it."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import threading
import time

import pytest

from overlap_train._support.main_thread import Alarm, SignalListener, call_within

WAIT_S = 60


class Rung(Exception):
    pass


class Late(Exception):
    pass


def ring():
    raise Rung


def never():
    while True:
        pass


def stubborn():
    while True:
        with contextlib.suppress(Exception):
            time.sleep(WAIT_S)


def locked():
    lock = threading.Lock()
    assert lock.acquire()
    lock.acquire()


def received():
    one, other = socket.socketpair()
    with one, other:
        one.recv(1)


def read():
    reader, writer = os.pipe()
    try:
        os.read(reader, 1)
    finally:
        os.close(reader), os.close(writer)


WAITS = {
    "sleep": lambda: time.sleep(10 * WAIT_S),
    "loop": never,
    "except Exception": stubborn,
    "lock": locked,
    "queue": lambda: queue.Queue().get(),
    "event": lambda: threading.Event().wait(),
    "socket": received,
    "pipe": read,
    "signal": lambda: signal.pause(),
}


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS.keys())
def test_what_takes_too_long_is_ended_where_it_stands(wait):
    with pytest.raises(Late, match="too late") as raised:
        call_within(0.05, wait, lambda: Late("too late"))
    assert any(entry.path.samefile(__file__) for entry in raised.traceback[1:])


@pytest.mark.parametrize("seconds", [None, WAIT_S])
def test_what_ends_in_time_returns_and_raises_as_ever(seconds):
    before = signal.getsignal(signal.SIGURG)
    assert call_within(seconds, lambda: "done", Late) == "done"
    with pytest.raises(ZeroDivisionError):
        call_within(seconds, lambda: 1 / 0, Late)
    assert signal.getsignal(signal.SIGURG) == before
    assert "time-limit" not in [thread.name for thread in threading.enumerate()]


def test_one_limit_within_another_is_the_sooner_one():
    def inner():
        with pytest.raises(Late, match="inner"):
            call_within(0.05, WAITS["sleep"], lambda: Late("inner"))
        time.sleep(10 * WAIT_S)

    with pytest.raises(Late, match="outer"):
        call_within(0.5, inner, lambda: Late("outer"))


@pytest.mark.parametrize("wait", [never, lambda: [time.sleep(0.01) for _ in range(100 * WAIT_S)]])
def test_on_another_thread_what_runs_python_is_ended(wait):
    ended = []

    def run():
        try:
            call_within(0.05, wait, Late)
        except Late as error:
            ended.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(WAIT_S)
    assert len(ended) == 1


def test_an_alarm_rings_in_the_main_thread_and_leaves_other_signals_to_the_handler_before():
    rang, passed = [], []
    before = signal.signal(signal.SIGURG, lambda *_: passed.append(True))
    try:
        with Alarm(lambda: rang.append(threading.current_thread())) as alarm:
            assert alarm.armed
            thread = threading.Thread(target=alarm.ring)
            thread.start()
            thread.join(WAIT_S)
            os.kill(os.getpid(), signal.SIGURG)
        alarm.ring()
        assert rang == [threading.main_thread()]
        assert passed == [True]
    finally:
        signal.signal(signal.SIGURG, before)


def test_an_alarm_of_another_thread_does_not_ring():
    def run():
        with Alarm(ring) as alarm:
            armed.append(alarm.armed)
            alarm.ring()

    armed = []
    thread = threading.Thread(target=run)
    thread.start()
    thread.join(WAIT_S)
    assert armed == [False]


@pytest.fixture
def usr1():
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    yield
    signal.signal(signal.SIGUSR1, before)


def test_signals_are_heard_beside_the_main_thread_and_passed_on(usr1):
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer)
    try:
        heard: queue.Queue = queue.Queue()
        with SignalListener(heard.put):
            os.kill(os.getpid(), signal.SIGUSR1)
            assert heard.get(timeout=WAIT_S) == bytes([signal.SIGUSR1])
            assert os.read(reader, 9) == bytes([signal.SIGUSR1])
        assert signal.set_wakeup_fd(before) == writer
    finally:
        os.close(reader), os.close(writer)


def test_a_listener_is_called_when_its_time_is_over(usr1):
    heard: queue.Queue = queue.Queue()

    def act(signals):
        heard.put(signals)
        return 0.01 if signals else None

    with SignalListener(act):
        os.kill(os.getpid(), signal.SIGUSR1)
        assert [heard.get(timeout=WAIT_S) for _ in range(2)] == [bytes([signal.SIGUSR1]), b""]


def test_who_listens_since_then_goes_on_listening(usr1):
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with SignalListener(lambda _: None):
        before = signal.set_wakeup_fd(writer)
    assert signal.set_wakeup_fd(-1) == writer
    os.close(reader), os.close(writer)
    assert before >= 0


def test_whoever_listened_before_may_have_closed_the_file_since(usr1):
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer)
    heard = threading.Event()
    with SignalListener(lambda _: heard.set()):
        os.close(reader), os.close(writer)
        os.kill(os.getpid(), signal.SIGUSR1)
        assert heard.wait(WAIT_S)
    assert signal.set_wakeup_fd(before) == -1


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_listener_ends_though_a_process_that_was_forked_off_goes_on():
    goes_on, goes = os.pipe()
    with SignalListener(lambda _: None):
        child = os.fork()
        if child == 0:
            os.read(goes_on, 1)
            os._exit(0)
    os.write(goes, b"1")
    assert os.waitpid(child, 0) == (child, 0)
    assert "signals" not in [thread.name for thread in threading.enumerate()]
    os.close(goes_on), os.close(goes)
