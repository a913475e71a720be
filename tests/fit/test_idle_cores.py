"""Idle cores are what undisturbed training calls leave of all cores."""

from __future__ import annotations

import pytest

from overlap_train._fit.lag import IdleCores


@pytest.mark.parametrize(
    ("cores", "busy", "idle"),
    [(2, 1.0, 1), (2, 1.9, 1), (2, 0.4, 2), (16, 1.2, 15), (16, 15.7, 1), (16, 40.0, 1), (1, 1.0, 1)],
)
def test_what_training_leaves_and_never_none(cores, busy, idle):
    cores_left = IdleCores(cores)
    for _ in range(3):
        cores_left.observe(0.25, busy * 0.25)
    assert cores_left.count == idle


def test_half_of_the_cores_as_long_as_nothing_is_known():
    assert [IdleCores(cores).count for cores in (1, 2, 8, 9)] == [1, 1, 4, 4]


def test_short_calls_are_added_up_and_old_ones_forgotten():
    cores = IdleCores(8)
    for _ in range(9):
        cores.observe(0.001, 0.006)
    assert cores.count == 4
    cores.observe(0.0011, 0.006)
    assert cores.count == 2
    for _ in range(5):
        cores.observe(0.2, 8 * 0.2)
    assert cores.count == 1
    for _ in range(3):
        cores.observe(0.2, 2 * 0.2)
    assert cores.count == 6
