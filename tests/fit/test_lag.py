"""Running ahead waits where the training leaves hardly any core idle."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from overlap_train._fit.idle_cores import IdleCores
from overlap_train._fit.lag import LagControl

CORES = 2


def control(*, judges_overlap=True, streamed=True, max_lag=1):
    """Returns a control, what it reads the idle cores from, and what it says."""
    idle, said = IdleCores(CORES), []
    backlog = SimpleNamespace(max_lag=max_lag)
    lag = LagControl(backlog, said.append, idle, streamed=streamed, judges_overlap=judges_overlap)
    return lag, idle, said


def train(idle, busy):
    """Five calls with so many cores busy: as many as are remembered."""
    for _ in range(5):
        idle.observe(0.25, busy * 0.25)


@pytest.mark.parametrize(
    ("busy", "waits"), [(1.0, False), (1.4, False), (1.6, True), (2.0, True), (2.2, True)]
)
def test_waits_where_hardly_any_core_is_idle(busy, waits):
    lag, idle, said = control()
    train(idle, busy)
    assert lag.wants_alone(0, 1) is waits
    assert len(said) == waits


def test_does_not_wait_before_anything_is_known():
    lag, _, said = control()
    assert lag.wants_alone(0, 1) is False
    assert not said


def test_runs_ahead_again_once_cores_are_idle_and_says_it_once():
    """A first epoch that fills a cache keeps all cores busy; those after it do not."""
    lag, idle, said = control()
    train(idle, 1.9)
    assert lag.wants_alone(0, 1)
    assert lag.wants_alone(1, 1)
    train(idle, 1.0)
    assert not lag.wants_alone(2, 1)
    train(idle, 1.9)
    assert lag.wants_alone(3, 1)
    assert said == [
        "epoch 1: the training leaves 0.10 of a core idle; validating in step with it as long as that is "
        "below 0.5"
    ]


@pytest.mark.parametrize("options", [{"judges_overlap": False}, {"max_lag": 0}])
def test_does_not_ask_where_it_does_not_matter(options):
    lag, idle, said = control(**options)
    train(idle, 2.0)
    assert lag.wants_alone(0, 1) is False
    assert not said


@pytest.mark.parametrize(
    ("streamed", "splits", "waits"), [(False, 1, True), (False, 4, False), (True, 1, True), (True, 4, True)]
)
def test_parts_of_a_batch_in_memory_bear_a_validation_beside_them(streamed, splits, waits):
    lag, idle, _ = control(streamed=streamed)
    train(idle, 1.9)
    assert lag.wants_alone(0, splits) is waits
