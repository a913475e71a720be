"""Values that callbacks may keep, for the tests of this folder."""

from __future__ import annotations

import collections

from hypothesis import strategies as st

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
    | st.complex_numbers(allow_nan=False) | st.sets(st.integers()) | st.frozensets(st.text()),
    lambda inner: st.lists(inner)
    | st.lists(inner).map(tuple)
    | st.dictionaries(st.text() | st.integers() | st.tuples(st.integers(), st.text()), inner)
    | st.lists(inner).map(collections.deque),
    max_leaves=8,
)  # fmt: skip
