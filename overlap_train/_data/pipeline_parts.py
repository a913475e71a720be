"""What a `tf.data` pipeline is made of, and what has been found out about it.

Its stages, the datasets that its functions have captured, and the Python that Hugging Face's
`Dataset.to_tf_dataset` puts into it. A pipeline never changes, and to walk through its functions takes
milliseconds: a `fit` in a loop looks once. Nothing that is kept here may hold the pipeline: its arrays are to
go when the user lets go of it.
"""

from __future__ import annotations

import copy
import functools
import inspect
import re
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import tensorflow as tf

from overlap_train._inspection.code import Unclear
from overlap_train._inspection.effects import is_kept
from overlap_train._inspection.reach import reached
from overlap_train._keras.data import hugging_face_kind

__all__ = [
    "captured_datasets",
    "hides_sources",
    "is_lookup",
    "looked_up_once",
    "makes_passes_alike",
    "nodes_of",
    "own_stages",
    "without_autotune",
]


T = TypeVar("T")

_FACTS: weakref.WeakKeyDictionary[tf.data.Dataset, dict[str, Any]] = weakref.WeakKeyDictionary()
_LOCK = threading.Lock()


def looked_up_once(find: Callable[[Any], T]) -> Callable[[Any], T]:
    """Decorates a function that finds something out about a pipeline, which does not hold the pipeline."""

    @functools.wraps(find)
    def found(dataset: Any) -> T:
        facts = _facts_of(dataset)
        if facts is None:
            return find(dataset)
        if find.__name__ not in facts:
            facts[find.__name__] = find(dataset)
        fact: T = facts[find.__name__]
        return fact

    return found


def without_autotune(dataset: Any) -> Any:
    """Returns a pipeline with the autotune thread off, unless the user set it; other data as it is.

    Tearing an iterator down can wait for that thread's next period, up to seconds:
    docs/results/2026-11-24-epochs.md.
    """
    if not isinstance(dataset, tf.data.Dataset) or _sets_autotune(dataset):
        return dataset
    untuned = copy.copy(_untuned(dataset))
    untuned._input_dataset = dataset
    return untuned


@looked_up_once
def _sets_autotune(dataset: tf.data.Dataset) -> bool:
    return dataset.options().autotune.enabled is not None


@looked_up_once
def _untuned(dataset: tf.data.Dataset) -> Any:
    """Returns the pipeline without autotune, which does not hold the one that it was made from."""
    options = tf.data.Options()
    options.autotune.enabled = False
    untuned = dataset.with_options(options)
    untuned._input_dataset = None
    return untuned


def _facts_of(dataset: Any) -> dict[str, Any] | None:
    """Returns what is kept of a pipeline; it is the same one without autotune. None for any other data."""
    if not isinstance(dataset, tf.data.Dataset):
        return None
    source = getattr(dataset, "_input_dataset", None)
    with _LOCK:
        facts = _FACTS.get(source, {}) if source is not None else {}
        if "_untuned" in facts and facts["_untuned"]._variant_tensor is dataset._variant_tensor:
            return facts
        return _FACTS.setdefault(dataset, {})


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


def rows_of_batches(dataset: Any) -> int | None:
    """Returns how many rows a pipeline's first batch has by its last `batch`; None if nothing says so."""
    while isinstance(dataset, tf.data.Dataset):
        size, sources = getattr(dataset, "_batch_size", None), dataset._inputs()
        if size is not None:
            rows = int(sources[0].cardinality())  # negative where it has no end, or none that is known
            return min(int(size), rows) if rows > 0 else int(size)
        dataset = sources[0] if len(sources) == 1 else None
    return None


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


def makes_passes_alike(function: Any) -> bool:
    """Whether a function is that of a generator which processes of Hugging Face's feed."""
    source: Any = getattr(_state_of(function), "_generator", None)
    if _name(type(source)) != (_MODULE, "NumpyMultiprocessingGenerator"):
        return False
    return _is_plain(source.dataset, source.collate_fn)


def _state_of(function: Any) -> Any:
    """Returns what one of the functions of `tf.data.Dataset.from_generator` works on."""
    if inspect.ismethod(function):
        return function.__self__
    try:
        return inspect.getclosurevars(function).nonlocals.get("generator_state")
    except TypeError:
        return None


def _is_plain(dataset: Any, collate: Any) -> bool:
    named = collate if inspect.isfunction(collate) else type(collate)
    plain = hugging_face_kind(dataset) == "Dataset" and dataset.format["type"] != "custom"
    return plain and _name(named) in _COLLATORS


def _name(named: Any) -> tuple[str, str]:
    return getattr(named, "__module__", ""), getattr(named, "__name__", "")
