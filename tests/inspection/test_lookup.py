"""What is found under a name, without running any code."""

from __future__ import annotations

import pytest

from overlap_train._inspection.code import MISSING, look_up, variables_of

LEVEL = 3


class Base:
    __slots__ = ("inner", "other")
    level = 1

    def __init__(self):
        self.inner = "in a slot"


class Own(Base):
    def __init__(self):
        super().__init__()
        self.level = 2

    def __getattr__(self, name):
        return "made up"


def closes_over(value):
    return lambda: value


def with_default(value=LEVEL):
    return value


@pytest.mark.parametrize(
    ("owner", "name", "found"),
    [
        (Own(), "level", 2),
        (Base(), "level", 1),
        (Own, "level", 1),
        (Own(), "inner", "in a slot"),
        (Own(), "other", MISSING),
        (Own(), "absent", MISSING),
        (globals(), "LEVEL", 3),
        (globals(), "ABSENT", MISSING),
        (closes_over(4).__closure__[0], "value", 4),
        (with_default, "__defaults__", (3,)),
        (with_default, "__code__", with_default.__code__),
    ],
)
def test_what_is_under_a_name(owner, name, found):
    assert look_up(owner, name) == found


def test_a_cell_that_nothing_has_filled_yet():
    def reads():
        return later

    assert look_up(reads.__closure__[0], "later") is MISSING
    later = 5
    assert look_up(reads.__closure__[0], "later") == 5


def test_a_class_s_property_comes_before_an_object_s_variable():
    class Has:
        on = property(lambda self: 1)

    thing = Has()
    vars(thing)["on"] = 2
    assert look_up(thing, "on") is vars(Has)["on"]


def test_variables_in_slots_are_among_those_of_an_object():
    assert variables_of(Own()) == {"inner": "in a slot", "level": 2}
    assert variables_of(3) == {}
