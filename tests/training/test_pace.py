"""The pace: short first calls, then as many steps as make up the time of a call."""

from __future__ import annotations

from overlap_train.training.pace import Pace


def test_the_first_calls_are_short_and_the_first_one_is_not_believed():
    pace = Pace(call_s=0.25)
    assert pace.steps() == 1
    pace.observe(1, 9.0)
    assert pace.step_s is None, "it includes tracing"
    assert pace.steps() == 4
    pace.observe(4, 0.04)
    assert pace.step_s == 0.01
    assert pace.steps() == 25


def test_one_stalled_call_does_not_shrink_the_next_to_nothing():
    pace = Pace(call_s=1.0)
    pace.observe(1, 1.0)
    pace.observe(10, 0.1)
    pace.observe(10, 100.0)
    assert pace.step_s == 0.04
    pace.observe(10, 1e-9)
    assert pace.step_s == 0.01


def test_a_call_of_no_step_teaches_nothing_and_a_step_longer_than_a_call_is_made_alone():
    pace = Pace(call_s=0.25)
    pace.observe(1, 1.0)
    pace.observe(0, 1.0)
    assert pace.step_s is None
    pace.observe(1, 60.0)
    assert pace.steps() == 1


def test_a_fixed_number_stays():
    pace = Pace(steps_per_call=7)
    for _ in range(3):
        assert pace.steps() == 7
        pace.observe(7, 0.001)
