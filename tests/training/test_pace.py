"""The pace sizes calls by time and forgets what a trial made of them."""

from __future__ import annotations

from overlap_train._training.loops import Pace


def test_first_call_is_not_learned_from_because_it_traces():
    pace = Pace(call_s=0.25)
    pace.observe(1, 30.0)
    assert pace.step_s is None


def test_calls_grow_to_the_time_wished():
    pace = Pace(call_s=0.25)
    pace.observe(1, 1.0)
    pace.observe(4, 0.004)
    assert pace.steps() == 250


def test_stalled_call_shrinks_the_next_by_a_factor_of_four_at_most():
    pace = Pace(call_s=0.25)
    pace.observe(1, 1.0)
    pace.observe(4, 0.004)
    pace.observe(250, 100.0)
    assert pace.steps() == 62


def test_trial_sets_the_size_until_it_settles():
    pace = Pace(call_s=0.25)
    pace.ask(7)
    pace.observe(7, 100.0)
    assert pace.steps() == 7
    pace.settle(0.001)
    assert pace.steps() == 250


def test_fixed_size_wins_over_a_trial():
    pace = Pace(steps_per_call=10)
    pace.ask(7)
    assert pace.steps() == 10
