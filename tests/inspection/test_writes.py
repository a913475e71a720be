"""What code may change is read in its source, and what it only reads or makes itself is not."""

from __future__ import annotations

import random

import numpy as np
import pytest

from overlap_train._inspection.reach import reached
from overlap_train._inspection.writes import may_write

LEVELS = {"level": 0}
NUMBER = 0


class Holder:
    total = 0

    def __init__(self):
        self.settings = {"a": 1}
        self.rows = np.zeros(4)
        self.inner = None


def written(make):
    """Returns what a function of a holder may write of the holder, by the names of its attributes."""
    holder = Holder()
    holder.inner = Holder()
    things = reached([make(holder)], object)
    found = may_write(things)
    names = {"settings": holder.settings, "rows": holder.rows, "holder": holder, "inner": holder.inner}
    names |= {"inner settings": holder.inner.settings, "class": Holder, "levels": LEVELS}
    return {name for name, value in names.items() if any(value is each for each in found)}


def sets_an_item(holder):
    def change():
        holder.settings["a"] = 2

    return change


def adds_in_place(holder):
    def change():
        holder.rows += 1

    return change


def sets_an_element(holder):
    def change():
        holder.rows[2] += 1

    return change


def by_another_name(holder):
    def change():
        settings = holder.settings
        settings["a"] = 2

    return change


def of_the_inner(holder):
    def change():
        holder.inner.settings.update(a=3)

    return change


def of_the_class(holder):
    def change():
        type(holder).total += 1

    return change


def deletes(holder):
    def change():
        del holder.settings["a"]

    return change


def shuffles(holder):
    def change():
        random.shuffle(holder.rows)

    return change


def writes_out(holder):
    def change():
        np.add(holder.rows, 1, out=holder.rows)

    return change


def sets_by_name(holder):
    def change():
        setattr(holder.inner, "inner", 3)  # noqa: B010

    return change


def calls_another(holder):
    def inner():
        holder.settings.clear()

    def change():
        inner()

    return change


def unpacks(holder):
    def change():
        holder.settings["a"], other = 1, 2
        return other

    return change


def loops(holder):
    def change():
        for holder.settings["a"] in range(3):
            pass

    return change


def of_a_global(holder):
    def change():
        LEVELS["level"] = 1

    return change


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (sets_an_item, {"settings"}),
        (adds_in_place, {"holder", "rows"}),
        (sets_an_element, {"rows"}),
        (by_another_name, {"settings"}),
        (of_the_inner, {"inner settings"}),
        (of_the_class, {"class"}),
        (deletes, {"settings"}),
        (shuffles, {"rows"}),
        (writes_out, {"rows"}),
        (sets_by_name, {"inner"}),
        (calls_another, {"settings"}),
        (unpacks, {"settings"}),
        (loops, {"settings"}),
        (of_a_global, {"levels"}),
    ],
)
def test_what_is_assigned_to_or_changed_by_a_method_is_found(make, names):
    assert names <= written(make)
    assert written(make) <= names | {"holder"}


def reads(holder):
    def change():
        batch = np.zeros(4)
        batch[0] = holder.rows[0] * holder.settings["a"] * LEVELS["level"]
        own = {**holder.settings}
        own["a"] = 3
        own.update(b=4)
        return batch, [*holder.settings], holder.settings.get("a"), holder.rows.mean()

    return change


def test_what_is_only_read_or_made_is_not():
    assert written(reads) == set()


def test_global_names_are_found():
    def change():
        global NUMBER
        NUMBER += 1

    assert [(space is globals(), name) for space, name in may_write([change])] == [(True, "NUMBER")]


class Data:
    """Methods of data: only those that making a batch may call count."""

    def __init__(self, settings):
        self.settings = settings
        self.settings["made"] = True

    def __getitem__(self, index):
        return self._made(index)

    def _made(self, index):
        return self.settings["level"] * index

    def set_level(self, level):
        self.settings["level"] = level


class Rising(Data):
    def on_epoch_end(self):
        self.set_level(3)


@pytest.mark.parametrize(("kind", "expected"), [(Data, False), (Rising, True)])
def test_only_what_making_batches_calls_counts(kind, expected):
    settings = {"level": 1}
    found = may_write(reached([kind(settings)], object))
    assert any(each is settings for each in found) is expected
