"""How a call answers arguments that it has not."""

from __future__ import annotations

import inspect
import pickle
from dataclasses import KW_ONLY, dataclass, replace

import pytest

from overlap_train._support.arguments import checks_names, knows_names


@knows_names
@dataclass(frozen=True)
class Policy:
    """A policy."""

    directory: str
    _: KW_ONLY
    max_lag: int = 1
    timeout_s: float | None = None


@checks_names("train", validation=Policy)
def train(model, *, validation=None, recorder=None):
    """Train."""
    return model, validation, recorder


@checks_names("fit", "Run({})", validation=Policy)
def fit(x):
    """Fit."""
    return x


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"maxlag": 2}, r"^Policy has no argument 'maxlag'; did you mean 'max_lag'\?$"),
        ({"timeout": 2}, r"^Policy has no argument 'timeout'; did you mean 'timeout_s'\?$"),
        ({"freq": 2}, r"^Policy has no argument 'freq'; it takes directory, max_lag and timeout_s$"),
    ],
)
def test_a_name_that_is_not_known_is_answered_with_what_was_meant(arguments, message):
    with pytest.raises(TypeError, match=message):
        Policy("runs", **arguments)


def test_an_argument_of_a_policy_is_answered_with_the_policy():
    with pytest.raises(TypeError, match=r"^train has no argument 'max_lag'; Policy has: pass validation=Pol"):
        train("model", max_lag=0)
    with pytest.raises(TypeError, match=r"^train has no argument 'record'; did you mean 'recorder'\?$"):
        train("model", record=None)


def test_an_argument_of_another_call_is_answered_with_that_call():
    with pytest.raises(TypeError, match=r"; Policy has: pass Run\(validation=Policy\(max_lag=\.\.\.\)\)$"):
        fit(1, max_lag=0)
    with pytest.raises(TypeError, match=r"'validation'; pass Run\(validation=Policy\(\.\.\.\)\)$"):
        fit(1, validation=Policy("runs"))


def test_arguments_that_are_taken_by_name_alone_are_listed():
    with pytest.raises(TypeError, match=r"^Policy takes max_lag and timeout_s by name; got 1 without one$"):
        Policy("runs", 2)
    with pytest.raises(TypeError, match=r"^train takes validation and recorder by name; got 2 without one$"):
        train("model", 2, 3)


def test_what_is_missing_is_named_by_python():
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'directory'"):
        Policy(max_lag=2)


def test_a_call_that_is_right_is_made_as_before():
    assert train("model", recorder=3) == ("model", None, 3)
    policy = Policy("runs", max_lag=2)
    assert replace(policy, max_lag=3) == Policy(directory="runs", max_lag=3)
    assert pickle.loads(pickle.dumps(policy)) == policy


def test_signatures_and_documentation_stay():
    assert list(inspect.signature(Policy).parameters) == ["directory", "max_lag", "timeout_s"]
    assert list(inspect.signature(train).parameters) == ["model", "validation", "recorder"]
    assert train.__doc__ == "Train."
