"""The marker `by_default` leaves cases to the nightly run, and none of the kinds."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.conftest import left_to_the_night


def cases(marker, *params):
    """Return stand-ins for the cases of a test, by the values of their parameters."""
    return [
        SimpleNamespace(
            originalname="test_it",
            callspec=SimpleNamespace(id=" ".join(map(str, each.values())), params=each),
            get_closest_marker=lambda name: marker.mark,
        )
        for each in params
    ]


def ids(found):
    return [each.callspec.id for each in found]


def test_the_cases_that_are_named_stay():
    found = cases(pytest.mark.by_default("1", "3"), *({"a": number} for number in range(5)))
    assert ids(left_to_the_night(found)) == ["0", "2", "4"]


def test_each_value_is_tried_with_some_others():
    product = [{"a": a, "b": b} for a in range(3) for b in range(2)]
    found = cases(pytest.mark.by_default(each_value=True), *product)
    assert ids(left_to_the_night(found)) == ["1 1", "2 1"]


def test_a_name_of_no_case_is_an_error_where_all_cases_are_there():
    found = cases(pytest.mark.by_default("1", "other"), {"a": 0}, {"a": 1})
    with pytest.raises(pytest.UsageError, match=r"test_it has no cases \['other'\]"):
        left_to_the_night(found)
    assert ids(left_to_the_night(found, whole=False)) == ["0"]
