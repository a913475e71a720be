"""Whether others compete for the cores is read off the system's clocks."""

from __future__ import annotations

import collections
import multiprocessing
import os
import time
import types

import psutil
import pytest

from overlap_train._training import trial
from overlap_train._training.trial import Disturbance

Times = collections.namedtuple("Times", "user nice system idle iowait irq softirq steal guest guest_nice")


class System:
    """Clocks of a machine that a test moves on."""

    def __init__(self, monkeypatch):
        self.now, self.own, self.machine = 0.0, 0.0, Times(*[0.0] * 10)
        monkeypatch.setattr(trial.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(trial.os, "times", lambda: types.SimpleNamespace(user=self.own, system=0.0))
        monkeypatch.setattr(psutil, "cpu_times", lambda: self.machine)

    def go_on(self, seconds, own, **machine):
        self.now += seconds
        self.own += own
        present = self.machine._asdict()
        self.machine = Times(**{name: value + machine.get(name, 0.0) for name, value in present.items()})


@pytest.mark.parametrize(
    ("own", "machine", "found"),
    [
        (2.0, {"user": 2.0}, False),
        (1.0, {"user": 1.0, "idle": 1.0}, False),
        (1.0, {"user": 2.0}, True),
        (1.5, {"user": 1.5, "steal": 0.5}, True),
        (1.5, {"user": 1.5, "nice": 0.2, "system": 0.2, "idle": 0.1}, True),
        (1.9, {"user": 2.0}, False),
        (1.0, {"user": 1.5, "idle": 0.5}, False),
        (2.0, {"user": 42.0, "idle": 22.0}, False),
        (1.5, {"user": 1.5, "iowait": 0.5}, False),
        (2.0, {"user": 2.0, "guest": 1.0}, False),
    ],
    ids=[
        "alone",
        "alone, a core idle",
        "another takes a core",
        "another guest of the host",
        "several small ones",
        "hardly anything else",
        "another, and cores left",
        "few cores of a large machine",
        "waiting for a disk",
        "own guests counted twice",
    ],
)
def test_others_disturb_who_leave_no_core(monkeypatch, own, machine, found):
    system = System(monkeypatch)
    system.go_on(5.0, own=9.0, user=20.0)
    watch = Disturbance()
    system.go_on(1.0, own, **machine)
    assert watch.found() is found


def test_a_moment_too_short_for_the_clocks_says_nothing(monkeypatch):
    system = System(monkeypatch)
    watch = Disturbance()
    system.go_on(0.01, 0.0, user=0.02)
    assert not watch.found()


@pytest.mark.parametrize("error", [PermissionError(13, "/proc/stat"), psutil.AccessDenied(), RuntimeError()])
def test_a_system_that_does_not_tell_is_taken_as_quiet(monkeypatch, error):
    def refuse():
        raise error

    monkeypatch.setattr(psutil, "cpu_times", refuse)
    assert not Disturbance().found()


def _burn(until):
    while time.monotonic() < until:
        pass


def test_real_processes_are_seen():
    """On the clocks of this machine, if a few processes can fill it."""
    cores = os.cpu_count() or 1
    if cores > 8:
        pytest.skip("needs a machine of at most 8 cores")
    until = time.monotonic() + 3.0
    context = multiprocessing.get_context("spawn")
    others = [context.Process(target=_burn, args=(until,)) for _ in range(cores)]
    for process in others:
        process.start()
    watch, before = Disturbance(), psutil.cpu_times()
    _burn(until - 1.0)
    found, after = watch.found(), psutil.cpu_times()
    for process in others:
        process.join()
    if after.idle - before.idle > 0.05 * (sum(after) - sum(before)):
        pytest.skip("needs all cores of the machine, of which this process may use fewer")
    assert found
