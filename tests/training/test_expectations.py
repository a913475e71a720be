"""What is hoped of a candidate before anybody has timed it: nothing where it never pays."""

from __future__ import annotations

import pytest

from overlap_train._training.trial import Candidate, build_cost, hoped_gain, steps_of_a_timed_call

SHORT_S, LONG_S = 0.5e-3, 0.1


def way(splits=1, jit=False, fast=""):
    return Candidate(splits, jit, fast)


PLAIN, SPLIT, COMPILED, FAST = way(), way(2), way(jit=True), way(fast="Adam")


@pytest.mark.parametrize(
    ("candidate", "best", "short", "long"),
    [
        (COMPILED, PLAIN, True, False),
        (SPLIT, PLAIN, False, True),
        (PLAIN, COMPILED, True, False),
        (FAST, PLAIN, False, True),
        (PLAIN, FAST, False, False),
        (SPLIT, FAST, False, False),
        (way(1, fast="Adam"), way(4, fast="Adam"), True, True),
        (way(2, fast="Adam"), FAST, False, True),
    ],
)
def test_what_saves_starting_operations_pays_in_short_steps_and_what_uses_cores_in_long_ones(
    candidate, best, short, long
):
    assert (hoped_gain(candidate, best, SHORT_S) > 0) is short
    assert (hoped_gain(candidate, best, LONG_S) > 0) is long


def test_splits_beside_splits_promise_less_than_the_first_ones():
    assert 0 < hoped_gain(way(4), SPLIT, LONG_S) < hoped_gain(way(4), PLAIN, LONG_S)


@pytest.mark.parametrize("step_s", [SHORT_S, 1.5e-3, 0.01, LONG_S])
def test_no_candidate_is_hoped_to_take_no_time(step_s):
    ways = [PLAIN, SPLIT, COMPILED, FAST, way(4), way(2, True), way(4, fast="Adam")]
    gains = [hoped_gain(one, other, step_s) for one in ways for other in ways if one != other]
    assert all(0 <= gain < 1 for gain in gains)


def test_what_takes_longer_to_build_costs_more():
    assert build_cost(PLAIN) < build_cost(SPLIT) < build_cost(way(4)) < build_cost(COMPILED)


@pytest.mark.parametrize(
    ("step_s", "steps"), [(0.01, 10), (0.1, 1), (3.0, 1), (0.0249, 4), (1e-9, 4000), (1e-4, 1000)]
)
def test_a_timed_call_has_a_tenth_of_a_second_of_steps_within_bounds(step_s, steps):
    assert steps_of_a_timed_call(step_s) == steps
