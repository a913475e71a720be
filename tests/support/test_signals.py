"""Signals are heard whatever the main thread does, and handlers are put back in forks."""

import os
import queue
import signal
import subprocess
import sys
import threading

import pytest

from overlap_train._support.signals import SignalListener, end_by

# The hook that is registered first waits, in the child, until the parent has sent the signal.
AT_THE_FORK = """
import os, signal, sys
waits, goes_on = os.pipe()
os.register_at_fork(after_in_child=lambda: os.read(waits, 1))
from overlap_train._support import signals

def undo():
    signal.signal(signal.SIGTERM, signal.SIG_DFL)

signal.signal(signal.SIGTERM, lambda *_: None)
signals.register(undo)
if len(sys.argv) > 1:
    signals.unregister(undo)
child = os.fork()
if child == 0:
    os._exit(bool(signal.pthread_sigmask(signal.SIG_BLOCK, ())))
os.kill(child, signal.SIGTERM)
os.write(goes_on, b"1")
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), signal.pthread_sigmask(signal.SIG_BLOCK, ()))
"""


@pytest.mark.parametrize(("arguments", "ends"), [([], "-15"), (["unregistered"], "0")], ids=["owned", "not"])
def test_a_signal_that_comes_at_the_fork_finds_the_handlers_put_back_by_their_owner(arguments, ends):
    command = [sys.executable, "-c", AT_THE_FORK, *arguments]
    process = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert not process.stderr
    assert process.stdout.strip() == f"{ends} set()"


@pytest.fixture
def handled():
    """SIGUSR1 has a handler that does nothing, or there would be nothing to hear."""
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.fixture
def listened():
    """The file of somebody else who listens."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer)
    yield reader
    assert signal.set_wakeup_fd(before) == writer, "listens again"
    os.close(reader)
    os.close(writer)


def test_signals_are_heard_on_another_thread_and_passed_on(handled, listened):
    events = queue.Queue()
    with SignalListener(lambda signals: events.put((signals, threading.current_thread()))):
        os.kill(os.getpid(), signal.SIGUSR1)
        signals, thread = events.get(timeout=60)
        assert signals == bytes([signal.SIGUSR1])
        assert thread is not threading.main_thread()
        assert os.read(listened, 1) == bytes([signal.SIGUSR1])
    assert not thread.is_alive()


def test_it_is_called_again_when_it_says_so(handled):
    events = queue.Queue()

    def act(signals):
        events.put(signals)
        return 0.01 if signals else None

    with SignalListener(act):
        os.kill(os.getpid(), signal.SIGUSR1)
        assert [events.get(timeout=60), events.get(timeout=60)] == [bytes([signal.SIGUSR1]), b""]


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_it_ends_while_a_forked_process_has_its_files():
    holds, over = os.pipe()
    with SignalListener(lambda signals: None):
        child = os.fork()
        if child == 0:
            os.read(holds, 1)
            os._exit(0)
    os.write(over, b"1")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    os.close(holds)
    os.close(over)


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_signal_of_the_system_s_ends_the_process_from_any_thread():
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(6))
        threading.Thread(target=end_by, args=(signal.SIGTERM,)).start()
        threading.Event().wait(60)
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
