"""Values that callbacks may keep, and their way through a checkpoint, for the tests of this folder."""

import collections
import json

from hypothesis import strategies as st

from overlap_train._callbacks.restoring import Restorer
from overlap_train._callbacks.values import Copier
from overlap_train._checkpoint.packing import joined, split

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
    | st.complex_numbers(allow_nan=False) | st.sets(st.integers()) | st.frozensets(st.text())
    | st.datetimes() | st.timedeltas(),
    lambda inner: st.lists(inner)
    | st.lists(inner).map(tuple)
    | st.dictionaries(st.text() | st.integers() | st.tuples(st.integers(), st.text()), inner)
    | st.lists(inner).map(collections.deque),
    max_leaves=8,
)  # fmt: skip


def through_json(node):
    """Returns a copy as a checkpoint gives it back."""
    arrays, described = split(node, "here")
    return joined(json.loads(json.dumps(described)), arrays)


def packed_and_unpacked(value):
    """Returns a plain value as a checkpoint gives it back."""
    return Restorer().put(None, through_json(Copier().copy(value)))


def moved(value, live):
    """Returns what a value becomes in another process, where `live` is in its place."""
    return Restorer().put(live, through_json(Copier().copy(value)))
