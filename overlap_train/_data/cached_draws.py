"""A: what a pipeline draws or writes beneath a cache, which its first pass fills and the others repeat."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from overlap_train._data.pipeline import captured_by, draws_lazily, is_cache, reorders, stages_of
from overlap_train._data.pipeline_facts import looked_up_once

__all__ = ["draws_within_a_pass", "written_beneath_caches"]


@looked_up_once
def written_beneath_caches(dataset: Any) -> list[str]:
    """Returns the names of the variables to which functions write whose elements are cached, each once.

    What the cache holds is drawn from them as they stood before the first pass.
    """
    caches = [stage for stage in stages_of(dataset) if is_cache(stage)]
    written = {id(v.handle): v.name for cache in caches for v in captured_by(cache) if v.written}
    return list(written.values())


@looked_up_once
def draws_within_a_pass(dataset: Any) -> bool:
    """Whether passes that each have an iterator of their own draw seeds, or fill a cache, as they are read.

    To make as many iterators is then not enough for what follows to be the same.
    """
    endless = dataset.cardinality() == tf.data.INFINITE_CARDINALITY
    return bool(written_beneath_caches(dataset) or draws_lazily(dataset) or (endless and reorders(dataset)))
