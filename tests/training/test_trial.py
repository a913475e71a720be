"""What the calls of a candidate say of it."""

from __future__ import annotations

import math

import pytest

from overlap_train._training import trial as module
from overlap_train._training.trial import Candidate, CandidateTiming, Trial

PLAIN = Candidate()


class Machine:
    """Other programs on it, or not."""

    def __init__(self, monkeypatch):
        self.disturbed = False
        monkeypatch.setattr(module, "Disturbance", lambda: self)

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
