"""Overlap is judged by what a validation costs alone and by what the training pays for it."""

from __future__ import annotations

import pytest

from overlap_train._fit.lag import OverlapGain, OverlapJudge
from overlap_train.records import Span


def span(name, start_s, end_s):
    return Span(name, "thread", start_s, end_s)


def epoch(beside_s):
    """Returns five calls of 100 steps, two of them beside a validation, the others of one second."""
    calls, now = [], 0.0
    for duration_s in (beside_s, beside_s, 1.0, 1.0, 1.0):
        calls.append((span("train", now, now + duration_s), 100))
        now += duration_s
    return calls, [span("validate", 0.0, 2 * beside_s)]


def judge(beside_s, *, epochs=2, alone_s=1.0):
    result = OverlapJudge()
    for _ in range(epochs):
        result.observe_beside(*epoch(beside_s))
    if alone_s is not None:
        result.observe_alone(alone_s)
    return result


def test_validation_on_idle_cores_pays():
    assert judge(1.0).gain() == OverlapGain(alone_s=1.0, paid_s=0.0)
    assert judge(1.0).pays() is True


def test_validation_that_shares_busy_cores_does_not_pay():
    """Two seconds beside it at half the speed are one second lost: as much as it would take alone."""
    assert judge(1.5, alone_s=1.0).gain().saved_s == pytest.approx(0.0)
    assert judge(1.5, alone_s=1.0).pays() is False


def test_part_of_the_cost_hidden_pays():
    assert judge(1.25, alone_s=1.0).gain().saved_s == pytest.approx(0.5)
    assert judge(1.25, alone_s=1.0).pays() is True


@pytest.mark.parametrize(("cpu_s", "pays"), [(0.01, True), (0.5, True), (0.95, False), (None, False)])
def test_what_hardly_computes_is_not_blamed_for_a_slower_training(cpu_s, pays):
    """Where others use the machine, calls beside a validation that waits may be slower by chance."""
    result = judge(3.0, alone_s=None)
    result.observe_alone(1.0, cpu_s)
    assert result.pays() is pays
    expected = 4.0 if cpu_s is None else min(4.0, 1.5 * cpu_s)
    assert result.gain().paid_s == pytest.approx(expected)


def test_one_stalled_epoch_does_not_decide():
    result = judge(1.1, epochs=4)
    result.observe_beside(*epoch(50.0))
    assert result.pays() is True


def test_nothing_is_judged_before_enough_epochs():
    assert judge(9.0, epochs=1).pays() is None


def test_asks_for_one_validation_alone_and_judges_then():
    result = judge(9.0, alone_s=None)
    assert result.wants_alone
    assert result.pays() is None
    result.observe_alone(1.0)
    assert not result.wants_alone
    assert result.pays() is False


def test_nothing_is_judged_without_undisturbed_calls():
    result = OverlapJudge(epochs=1)
    result.observe_beside([(span("train", 0.0, 1.0), 10)], [span("validate", 0.0, 2.0)])
    result.observe_alone(1.0)
    assert not result.wants_alone
    assert result.pays() is None


def test_empty_calls_are_left_out():
    result = OverlapJudge(epochs=1)
    calls = [(span("train", 0.0, 1.0), 0), (span("train", 1.0, 1.0), 5)]
    result.observe_beside(calls, [span("validate", 0.0, 1.0)])
    assert result.gain() is None
