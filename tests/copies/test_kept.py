"""The attributes of an object are copied by name, and what cannot be is told."""

from __future__ import annotations

import threading

import numpy as np

from overlap_train._copies.kept import kept
from overlap_train._copies.objects import attributes_of
from overlap_train._copies.values import Copies


class Holder:
    """Holds of each kind: what changes, what is the same whatever happens, and what belongs to a process."""

    def __init__(self):
        self.rows, self.function, self.socket = [1, 2], len, memoryview(b"")
        self.inner = Inner()

    @property
    def double(self):
        return 2


class Inner:
    def __init__(self):
        self.count, self.stream, self.lock = 1, memoryview(b""), threading.Lock()


def taken(owner, names, **options):
    return kept(owner, names, Copies(), look_into=attributes_of, foreign=(), **options)


def test_what_is_lost_is_told_from_what_stays_the_same():
    state = taken(Holder(), ["rows", "function", "socket", "inner"])
    assert state.kind == "Holder"
    assert state.values.keys() == {"rows", "inner"}
    assert state.left_out == ("function", "socket")
    assert state.lost == ("socket", "inner.stream")


def test_a_value_behind_a_property_is_left_out():
    holder = Holder()
    vars(holder)["double"] = 3
    assert taken(holder, ["double"]).left_out == ("double",)


def test_arrays_are_copied_if_their_owner_may_write_into_them():
    holder = Holder()
    holder.rows = np.arange(3)
    assert taken(holder, ["rows"]).values["rows"] is not holder.rows
    assert taken(holder, ["rows"], copy_arrays=False).values["rows"] is holder.rows
