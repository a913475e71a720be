"""The validation set is divided at batch boundaries."""

from __future__ import annotations

import itertools

from hypothesis import example, given
from hypothesis import strategies as st

from overlap_train._data.validation_data import split_batches


@example(0, 3)
@given(st.integers(0, 10_000), st.integers(1, 100))
def test_shards_cover_every_batch_once_and_evenly(num_batches, parts):
    shards = split_batches(num_batches, parts)
    covered = list(itertools.chain.from_iterable(range(s.first, s.stop) for s in shards))
    assert covered == list(range(num_batches))
    lengths = [s.stop - s.first for s in shards]
    assert [s.index for s in shards] == list(range(min(parts, num_batches)))
    assert not lengths or max(lengths) - min(lengths) <= 1
    assert all(lengths)
