"""A policy refuses what cannot be meant, saying what came and what was expected."""

from __future__ import annotations

import dataclasses

import pytest

from overlap_train import ValidationPolicy


def test_the_defaults_are_the_documented_ones():
    policy = ValidationPolicy()
    assert (policy.max_lag, policy.backlog, policy.on_change, policy.timeout_s) == (
        1,
        "block",
        "rollback",
        None,
    )
    assert policy.resolved_workers >= 1
    assert ValidationPolicy(workers=7).resolved_workers == 7


def test_one_core_gets_one_worker(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    assert ValidationPolicy().resolved_workers == 1
    monkeypatch.setattr("os.cpu_count", lambda: None)
    assert ValidationPolicy().resolved_workers == 1


def test_a_policy_does_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        ValidationPolicy().max_lag = 2


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"workers": 0}, ValueError, "workers must be at least 1; got 0"),
        ({"workers": -2}, ValueError, "workers must be at least 1; got -2"),
        ({"workers": True}, TypeError, "workers must be an int; got True of type bool"),
        ({"workers": 2.0}, TypeError, "workers must be an int; got 2.0 of type float"),
        ({"max_lag": -1}, ValueError, "max_lag must be at least 0; got -1"),
        ({"max_lag": None}, TypeError, "max_lag must be an int; got None"),
        ({"cache_bytes": -1}, ValueError, "cache_bytes must be at least 0"),
        ({"join_batches": 1}, TypeError, "join_batches must be True or False; got 1"),
        ({"backlog": "wait"}, ValueError, "backlog must be one of 'block'.*; got 'wait'"),
        ({"on_change": None}, ValueError, "on_change must be one of 'rollback', 'continue'; got None"),
        ({"timeout_s": 0}, ValueError, "timeout_s must be positive, or None to wait for ever; got 0"),
        ({"timeout_s": -1.5}, ValueError, "timeout_s must be positive"),
        ({"timeout_s": float("nan")}, ValueError, "timeout_s must be positive"),
        ({"timeout_s": "5"}, TypeError, "timeout_s must be a number of seconds or None; got '5'"),
        ({"timeout_s": True}, TypeError, "timeout_s must be a number of seconds"),
    ],
)
def test_bad_values_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        ValidationPolicy(**arguments)
