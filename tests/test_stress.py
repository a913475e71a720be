"""The plugin that sets other defaults sets no more."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests import stress


@pytest.fixture
def options():
    @dataclass(frozen=True)
    class Options:
        one: int = 1
        two: str = "two"

    stress.set_default(Options, "two", "another")
    return Options


def test_a_default_is_another(options):
    assert options() == options(1, "another")
    assert options(one=3).two == "another"


@pytest.mark.parametrize("given", [{"two": "two"}, {"one": 3, "two": "two"}])
def test_what_is_given_stays(options, given):
    assert options(**given).two == "two"
    assert options(*{"one": 1, **given}.values()).two == "two"
