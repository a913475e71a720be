"""A policy refuses what cannot be meant, saying what came and what was expected."""

from __future__ import annotations

import dataclasses

import numpy as np
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
        (
            {"workers": True},
            TypeError,
            r"workers must be an integer, a sequence of devices .*; got True of type bool",
        ),
        (
            {"workers": 2.0},
            TypeError,
            r"workers must be an integer, a sequence of devices .*; got 2.0 of type float",
        ),
        ({"max_lag": -1}, ValueError, "max_lag must be at least 0; got -1"),
        ({"max_lag": None}, TypeError, "max_lag must be an integer; got None"),
        ({"keep_bytes": -1}, ValueError, "keep_bytes must be at least 0"),
        ({"keep_bytes": "1 GB"}, TypeError, "keep_bytes must be an integer"),
        ({"backlog": "wait"}, ValueError, "backlog must be one of 'block'.*; got 'wait'"),
        ({"on_change": None}, ValueError, "on_change must be one of 'rollback', 'continue'; got None"),
        ({"timeout_s": 0}, ValueError, "timeout_s must be positive; got 0"),
        ({"timeout_s": -1.5}, ValueError, "timeout_s must be positive"),
        ({"timeout_s": float("nan")}, ValueError, "timeout_s must be positive"),
        ({"timeout_s": float("inf")}, ValueError, "timeout_s must be finite; got inf"),
        ({"workers": "GPU:0"}, TypeError, "workers must be an integer, a sequence of devices"),
        ({"workers": ()}, ValueError, "workers is empty"),
        ({"workers": ("GPU:x",)}, ValueError, "names of devices such as 'GPU:1'; got 'GPU:x'"),
        ({"timeout_s": "5"}, TypeError, "timeout_s must be a number of seconds or None; got '5'"),
        ({"timeout_s": True}, TypeError, "timeout_s must be a number of seconds"),
    ],
)
def test_bad_values_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        ValidationPolicy(**arguments)


def test_scalars_of_numpy_are_kept_as_those_of_python():
    policy = ValidationPolicy(
        workers=np.int32(2),
        max_lag=np.int64(1),
        overlap=np.str_("always"),
        timeout_s=np.float32(0.5),
    )
    plain = ValidationPolicy(workers=2, max_lag=1, overlap="always", timeout_s=0.5)
    assert policy == plain
    # Hosts compare the texts of their policies.
    assert str(policy) == str(plain)
