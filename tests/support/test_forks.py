"""Owners of signal handlers are told in each forked process, before a signal reaches it."""

from __future__ import annotations

import subprocess
import sys

# The hook that is registered first waits, in the child, until the parent has sent the signal.
AT_THE_FORK = """
import os, signal, sys
waits, goes_on = os.pipe()
os.register_at_fork(after_in_child=lambda: os.read(waits, 1))
from overlap_train._support import signals

class Owner:
    def in_child(self):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

owner = Owner()
signal.signal(signal.SIGTERM, lambda *_: None)
signals.register(owner)
if len(sys.argv) > 1:
    signals.unregister(owner)
child = os.fork()
if child == 0:
    os._exit(bool(signal.pthread_sigmask(signal.SIG_BLOCK, ())))
os.kill(child, signal.SIGTERM)
os.write(goes_on, b"1")
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), signal.pthread_sigmask(signal.SIG_BLOCK, ()))
"""


def after_a_fork(*arguments):
    done = subprocess.run(
        [sys.executable, "-c", AT_THE_FORK, *arguments], capture_output=True, text=True, timeout=60
    )
    assert not done.stderr
    return done.stdout.strip()


def test_a_signal_that_comes_at_the_fork_finds_the_handlers_put_back():
    assert after_a_fork() == "-15 set()"


def test_without_an_owner_a_fork_is_as_ever():
    assert after_a_fork("unregistered") == "0 set()"
