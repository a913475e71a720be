"""Candidates of a plan: what is hoped of them, what real steps say, and what earlier runs measured."""

from __future__ import annotations

import collections
import json
import math
import os
import subprocess
import sys
import time
import types

import psutil
import pytest

from overlap_train._training import trial
from overlap_train._training.trial import (
    Candidate,
    CandidateTiming,
    Disturbance,
    PlanCache,
    Trial,
    build_cost,
    hoped_gain,
    steps_of_a_timed_call,
)

SHORT_S, LONG_S = 0.5e-3, 0.1


PLAIN, SPLIT, FOUR, COMPILED, FAST = (
    Candidate(),
    Candidate(2),
    Candidate(4),
    Candidate(jit=True),
    Candidate(fast="Adam"),
)


@pytest.mark.parametrize(
    ("candidate", "best", "short", "long"),
    [
        (COMPILED, PLAIN, True, False),
        (SPLIT, PLAIN, False, True),
        (PLAIN, COMPILED, True, False),
        (FAST, PLAIN, False, True),
        (PLAIN, FAST, False, False),
        (SPLIT, FAST, False, False),
        (Candidate(1, fast="Adam"), Candidate(4, fast="Adam"), True, True),
        (Candidate(2, fast="Adam"), FAST, False, True),
    ],
)
def test_what_saves_starting_operations_pays_in_short_steps_and_what_uses_cores_in_long_ones(
    candidate, best, short, long
):
    assert (hoped_gain(candidate, best, SHORT_S) > 0) is short
    assert (hoped_gain(candidate, best, LONG_S) > 0) is long


def test_splits_beside_splits_promise_less_than_the_first_ones():
    assert 0 < hoped_gain(FOUR, SPLIT, LONG_S) < hoped_gain(FOUR, PLAIN, LONG_S)


@pytest.mark.parametrize("step_s", [SHORT_S, 1.5e-3, 0.01, LONG_S])
def test_no_candidate_is_hoped_to_take_no_time(step_s):
    ways = [PLAIN, SPLIT, COMPILED, FAST, FOUR, Candidate(2, True), Candidate(4, fast="Adam")]
    gains = [hoped_gain(one, other, step_s) for one in ways for other in ways if one != other]
    assert all(0 <= gain < 1 for gain in gains)


def test_what_takes_longer_to_build_costs_more():
    assert build_cost(PLAIN) < build_cost(SPLIT) < build_cost(FOUR) < build_cost(COMPILED)


@pytest.mark.parametrize(
    ("step_s", "steps"), [(0.01, 10), (0.1, 1), (3.0, 1), (0.0249, 4), (1e-9, 4000), (1e-4, 1000)]
)
def test_a_timed_call_has_a_tenth_of_a_second_of_steps_within_bounds(step_s, steps):
    assert steps_of_a_timed_call(step_s) == steps


class Machine:
    """Other programs on it, or not."""

    def __init__(self, monkeypatch):
        self.disturbed = False
        monkeypatch.setattr(trial, "Disturbance", lambda: self)

    def found(self):
        return self.disturbed


@pytest.fixture
def machine(monkeypatch):
    return Machine(monkeypatch)


def go_through(trial, *step_s):
    for seconds in step_s:
        assert not trial.over
        trial.take(trial.steps_asked, seconds * trial.steps_asked)


def test_the_first_two_calls_are_not_the_measurement_but_may_be_the_fastest(machine):
    trial = Trial(PLAIN, was_traced=False)
    trial.build_s = 1.0
    go_through(trial, 2.0, 0.01, 0.02, 0.03)
    assert trial.over
    assert trial.result() == CandidateTiming(3.0, pytest.approx(0.01), runs=1)


def test_the_time_of_further_first_steps_is_no_time_of_building(machine):
    trial = Trial(PLAIN, was_traced=False)
    trial.take(11, 3.0)
    go_through(trial, 0.1, 0.1, 0.1)
    assert trial.result().build_s == pytest.approx(2.0)


def test_calls_too_short_to_be_timed_are_passed_over(machine):
    trial = Trial(PLAIN, was_traced=False)
    trial.take(1, 1.0)
    for _ in range(9):
        trial.take(1, 1e-6)
    assert not trial.over
    assert math.isinf(trial.result().step_s)


def test_beside_others_it_is_nobodys_measurement(machine):
    trial = Trial(PLAIN, was_traced=False)
    machine.disturbed = True
    go_through(trial, 2.0, 0.01, 0.01, 0.01)
    assert trial.result().runs == 0


@pytest.mark.parametrize(("first", "second", "runs"), [(1, 1, 1), (0, 1, 1), (1, 0, 1), (0, 0, 0)], ids=str)
def test_a_second_look_keeps_the_shorter_time_and_whichever_look_was_quiet(machine, first, second, runs):
    trial = Trial(PLAIN, was_traced=True, before=CandidateTiming(2.0, 0.01, first))
    assert trial.steps_asked == 10
    machine.disturbed = not second
    go_through(trial, 0.02, 0.008, 0.03)
    assert trial.over
    assert trial.result() == CandidateTiming(2.0, pytest.approx(0.008), runs)


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


def test_real_processes_are_seen():
    """On the clocks of this machine, if a few processes can fill it."""
    cores = os.cpu_count() or 1
    if cores > 8:
        pytest.skip("needs a machine of at most 8 cores")
    others = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(cores)]
    try:
        watch, before = Disturbance(), psutil.cpu_times()
        until_s = time.monotonic() + 1.0
        while time.monotonic() < until_s:
            pass
        found, after = watch.found(), psutil.cpu_times()
    finally:
        for process in others:
            process.kill()
            process.wait()
    if after.idle - before.idle > 0.05 * (sum(after) - sum(before)):
        pytest.skip("needs all cores of the machine, of which this process may use fewer")
    assert found


ROW = {"splits": 1, "jit": False, "fast": "", "build_s": 1.0, "step_s": 1e-3, "runs": 2}


def content(*, runs=1, key="plan", **row):
    return json.dumps({"key": key, "runs": runs, "timings": [ROW | row]})


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"timings": [{"splits": 1}]}', '{"timings": 3}', "[" * 100_000, "9" * 5000, "\0", "null"]
    + [content(**{name: value}) for name in ROW for value in (None, "x", [], {}, -1, 1e400, float("nan"))]
    + [content(step_s=1e-300), content(step_s=0), content(build_s=1e400), content(splits=10**30)]
    + [content(runs=value) for value in (0, -5, 11, 1e400, 1.5, None)]
    + [content(key="another"), json.dumps({"runs": 1, "timings": [ROW]})],
    ids=lambda text: text[:40],
)
def test_damaged_foreign_and_nonsensical_caches_are_as_good_as_none(tmp_path, text):
    file = tmp_path / "plan.json"
    file.write_text(text, encoding="utf-8")
    if text not in (content(fast="x"), content(step_s=1e400)):  # infinite: it could not be compiled
        assert PlanCache(file).load() == {}
    PlanCache(file).save({PLAIN: CandidateTiming(1.0, 1.0)})
    assert PlanCache(file).load() == {PLAIN: CandidateTiming(1.0, 1.0)}


def test_a_sound_cache_is_read_so_that_the_test_above_can_fail(tmp_path):
    file = tmp_path / "plan.json"
    file.write_text(content(), encoding="utf-8")
    assert PlanCache(file).load() == {PLAIN: CandidateTiming(1.0, 1e-3, 2)}


def test_bytes_that_are_no_text_are_as_good_as_none(tmp_path):
    (tmp_path / "plan.json").write_bytes(b"\xff\xfe\0{}")
    assert PlanCache(tmp_path / "plan.json").load() == {}


def test_a_pipe_in_the_place_of_a_plan_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "plan.json")
    assert PlanCache(tmp_path / "plan.json").load() == {}
    PlanCache(tmp_path / "plan.json").save({PLAIN: CandidateTiming(1.0, 1.0)})
    assert PlanCache(tmp_path / "plan.json").load() == {PLAIN: CandidateTiming(1.0, 1.0)}


def test_a_full_disk_leaves_the_plan_as_it_was(tmp_path, monkeypatch):
    def fail(path, text):
        raise OSError(28, "No space left on device")

    PlanCache(tmp_path / "plan.json").save({PLAIN: CandidateTiming(1.0, 1.0)})
    monkeypatch.setattr(trial, "replace_content", fail)
    PlanCache(tmp_path / "plan.json").save({PLAIN: CandidateTiming(2.0, 2.0)})
    assert PlanCache(tmp_path / "plan.json").load() == {PLAIN: CandidateTiming(1.0, 1.0)}


def test_unwritable_cache_is_no_error(tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    cache = PlanCache(tmp_path / "file" / "plan.json")
    cache.save({PLAIN: CandidateTiming(1.0, 1.0)})
    assert cache.load() == {}


def test_cache_keeps_what_was_saved(tmp_path):
    timings = {PLAIN: CandidateTiming(1.0, 0.5), FOUR: CandidateTiming(2.0, 0.25)}
    PlanCache(tmp_path / "a" / "plan.json").save(timings)
    assert PlanCache(tmp_path / "a" / "plan.json").load() == timings
    assert json.loads((tmp_path / "a" / "plan.json").read_text())["timings"][0]["splits"] == 1
