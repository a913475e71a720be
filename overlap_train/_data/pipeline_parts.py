"""The parts of a `tf.data` pipeline, and a cache of facts about it.

Its parts are its stages and the Python that Hugging Face's `Dataset.to_tf_dataset` puts into it. A pipeline
never changes, and walking through its functions takes milliseconds, so a `fit` in a loop does it once. No
cached fact may hold the pipeline: its arrays are to be freed when the user drops it.
"""

from __future__ import annotations

import functools
import inspect
import re
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import tensorflow as tf

from overlap_train._inspection.effects import is_kept

T = TypeVar("T")

_FACTS: weakref.WeakKeyDictionary[tf.data.Dataset, dict[str, Any]] = weakref.WeakKeyDictionary()
_LOCK = threading.Lock()


def looked_up_once(find: Callable[[Any], T]) -> Callable[[Any], T]:
    """Caches what a function returns of a pipeline, which must not hold the pipeline."""

    @functools.wraps(find)
    def look_up(dataset: Any) -> T:
        if not isinstance(dataset, tf.data.Dataset):
            return find(dataset)
        facts = _facts_of(dataset)
        if find.__name__ not in facts:
            facts[find.__name__] = find(dataset)
        fact: T = facts[find.__name__]
        return fact

    return look_up


def without_autotune(dataset: Any) -> Any:
    """Returns a pipeline with the autotune thread off, unless the user set it; other data as it is.

    Ending an iterator can wait for that thread's next period, up to seconds:
    docs/results/archive/2026-11-24-epochs.md.
    """
    if not isinstance(dataset, tf.data.Dataset) or _sets_autotune(dataset):
        return dataset
    options = tf.data.Options()
    options.autotune.enabled = False
    untuned = dataset.with_options(options)
    facts = _facts_of(dataset)
    with _LOCK:
        _FACTS[untuned] = facts  # which are the same
    return untuned


@looked_up_once
def _sets_autotune(dataset: tf.data.Dataset) -> bool:
    return dataset.options().autotune.enabled is not None


def _facts_of(dataset: tf.data.Dataset) -> dict[str, Any]:
    with _LOCK:
        return _FACTS.setdefault(dataset, {})


# Operations that TensorFlow calls stateful, but that are handled elsewhere or start over with each iterator.
_HARMLESS = re.compile(
    r"(?!.*(Queue|Iterator|Barrier|Accumulator))"
    r"(Random.*|Multinomial|.*TruncatedNormal|Skipgram|SampleDistorted.*|.*CandidateSampler|StatelessRandomGetAlg"
    r"|(Eager)?PyFunc|Print.*|StringFormat|LookupTable.*|InitializeTable.*|.*HashTable.*|Write.*Summary"
    r"|.*Dataset.*|Dummy.*|Anonymous(Random)?(Seed.*|MemoryCache)|GuaranteeConst|DeviceIndex|DeepCopy|RestoreV2)"
)


def stages_of(dataset: Any) -> Iterator[tf.data.Dataset]:
    """Yields a dataset and all that it is made from."""
    left, visits = [dataset], set()
    while left:
        stage = left.pop()
        if isinstance(stage, tf.data.Dataset) and id(stage) not in visits:
            visits.add(id(stage))
            yield stage
            left += stage._inputs()


def rows_of_batches(dataset: Any) -> int | None:
    """Returns how many rows a pipeline's first batch has by its last `batch`; None if nothing says so."""
    while isinstance(dataset, tf.data.Dataset):
        size, sources = getattr(dataset, "_batch_size", None), dataset._inputs()
        if size is not None:
            rows = int(sources[0].cardinality())  # negative if infinite or unknown
            return min(int(size), rows) if rows > 0 else int(size)
        dataset = sources[0] if len(sources) == 1 else None
    return None


def hides_sources(stage: tf.data.Dataset) -> bool:
    """Whether the functions of one stage draw from a source that is none of its inputs.

    That is a dataset that a function has captured, an iterator, a queue, a file that is written, the clock.
    """
    functions = [function.function for function in stage._functions()]
    captured = (tensor.dtype == tf.variant for each in functions for tensor in each.captured_inputs)
    nodes = (node for each in functions for node in nodes_of(each))
    return any(captured) or not all(is_kept(n.op) or _HARMLESS.fullmatch(n.op) for n in nodes)


def nodes_of(concrete: Any) -> Iterator[Any]:
    """Yields all operations of a traced function and of those that it calls."""
    graph = concrete.graph.as_graph_def()
    yield from graph.node
    for inner in graph.library.function:
        yield from inner.node_def


_MODULE = "datasets.utils.tf_utils"
# Functions and classes whose batches follow from the rows alone.
_COLLATORS = (
    (_MODULE, "minimal_tf_collate_fn"),
    (_MODULE, "minimal_tf_collate_fn_with_renaming"),
    ("transformers.data.data_collator", "DefaultDataCollator"),
    ("transformers.data.data_collator", "DataCollatorWithPadding"),
)


def is_lookup(function: Any) -> bool:
    """Whether a function looks rows up by their number, and does nothing else."""
    if not isinstance(function, functools.partial) or _name(function.func) != (_MODULE, "np_get_batch"):
        return False
    return _is_plain(function.keywords.get("dataset"), function.keywords.get("collate_fn"))


def _is_plain(dataset: Any, collate: Any) -> bool:
    collator = collate if inspect.isfunction(collate) else type(collate)
    kinds = map(_name, type(dataset).__mro__)
    plain = ("datasets.arrow_dataset", "Dataset") in kinds and dataset.format["type"] != "custom"
    return plain and _name(collator) in _COLLATORS


def _name(definition: Any) -> tuple[str, str]:
    return getattr(definition, "__module__", ""), getattr(definition, "__name__", "")
