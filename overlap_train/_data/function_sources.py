"""What functions of a `tf.data` pipeline draw from: datasets that they have captured, and what is not seen.

Of a dataset that a function has captured, as in `range(n).flat_map(lambda i: dataset)`, TensorFlow keeps the
tensor alone. It is found again where the function's Python can get hold of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tensorflow as tf

from overlap_train._inspection.code import Unclear
from overlap_train._inspection.effects import is_kept
from overlap_train._inspection.reach import reached

__all__ = ["captured_datasets", "hides_sources", "nodes_of", "own_stages"]

# Operations that TensorFlow calls stateful, which are looked at elsewhere or begin anew with each iterator.
_SEEN = re.compile(
    r"(?!.*(Queue|Iterator|Barrier|Accumulator))"
    r"(Random.*|Multinomial|.*TruncatedNormal|Skipgram|SampleDistorted.*|.*CandidateSampler|StatelessRandomGetAlg"
    r"|(Eager)?PyFunc|Print.*|StringFormat|LookupTable.*|InitializeTable.*|.*HashTable.*|Write.*Summary"
    r"|.*Dataset.*|Dummy.*|Anonymous(Random)?(Seed.*|MemoryCache)|GuaranteeConst|DeviceIndex|DeepCopy|RestoreV2)"
)


def own_stages(
    dataset: Any, sources: Callable[[Any], Iterable[Any]] = lambda stage: stage._inputs()
) -> Iterator[tf.data.Dataset]:
    """Yields a dataset and all that it is made from, without what functions have captured."""
    left, seen = [dataset], set()
    while left:
        stage = left.pop()
        if isinstance(stage, tf.data.Dataset) and id(stage) not in seen:
            seen.add(id(stage))
            yield stage
            left += sources(stage)


def captured_datasets(stage: tf.data.Dataset) -> list[tf.data.Dataset]:
    """Returns the datasets that the functions of one stage have captured, as far as they are found."""
    return [dataset for dataset in _captured(stage) if dataset is not None]


def hides_sources(stage: tf.data.Dataset) -> bool:
    """Whether the functions of one stage draw from what is not known.

    That is a dataset which is not found, an iterator, a queue, a file that is written, the clock.
    """
    return None in _captured(stage) or any(
        _is_hidden(node.op) for function in stage._functions() for node in nodes_of(function.function)
    )


def nodes_of(concrete: Any) -> Iterator[Any]:
    """Yields all operations of a traced function and of those that it calls."""
    graph = concrete.graph.as_graph_def()
    yield from graph.node
    for inner in graph.library.function:
        yield from inner.node_def


def _is_hidden(operation: str) -> bool:
    return not is_kept(operation) and _SEEN.fullmatch(operation) is None


def _captured(stage: tf.data.Dataset) -> list[tf.data.Dataset | None]:
    """Returns what each tensor of a dataset is that a function of a stage has captured; None is not found."""
    found: list[tf.data.Dataset | None] = []
    for function in stage._functions():
        tensors = [tensor for tensor in function.function.captured_inputs if tensor.dtype == tf.variant]
        if tensors:
            known = _within_reach(getattr(function, "_func", None))
            found += [known.get(id(tensor)) for tensor in tensors]
    return found


def _within_reach(function: Any) -> dict[int, tf.data.Dataset]:
    """Returns the datasets that a function's Python can get hold of and their stages, by their tensors."""
    try:
        datasets = reached([function], tf.data.Dataset)
    except Unclear:
        return {}
    return {id(stage._variant_tensor): stage for dataset in datasets for stage in own_stages(dataset)}
