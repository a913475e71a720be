"""What the operations of a `tf.data` pipeline tell about another pass over it, and how it is run.

Read from the pipeline's Python objects, without running or copying any data. TensorFlow has no public way
to ask; `tests/data/test_pipeline.py` fails where the private names used here move. Keras lets TensorFlow put
a stage behind a pipeline that fetches ahead. Where that can be seen in the next pass, a pipeline is asked for
as much here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from overlap_train._data.batches import Preprocess, prepare, size_bytes
from overlap_train._data.pipeline_parts import (
    captured_datasets,
    hides_sources,
    is_lookup,
    looked_up_once,
    makes_passes_alike,
    nodes_of,
    own_stages,
    without_autotune,
)
from overlap_train._inspection.effects import find_effects, find_tables
from overlap_train._inspection.graph import python_function
from overlap_train._inspection.traced import CapturedVariable, captured_variables

__all__ = [
    "UNKNOWN",
    "cache_files",
    "caches_draws",
    "calls_python",
    "captured_by",
    "draws_lazily",
    "draws_orders",
    "function_nodes",
    "is_asked_for_its_end",
    "is_repeatable",
    "keeps_more_than_variables",
    "keeps_state",
    "looks_up_rows",
    "prepared_batches",
    "python_draws_at_pass",
    "python_functions",
    "read_by",
    "reorders",
    "shuffles_of",
    "stages_of",
]


# Stages that make their inputs' iterators when their own is made. Any other stage may do so when the first
# element is drawn, as `shuffle` and `repeat` do, or may keep elements of an earlier pass, as `cache` does.
_EAGER = (
    "_BatchDataset",
    "_DirectedInterleaveDataset",
    "_FilterDataset",
    "_MapDataset",
    "_OptionsDataset",
    "_PaddedBatchDataset",
    "_ParallelBatchDataset",
    "_ParallelMapDataset",
    "_PrefetchDataset",
    "_SkipDataset",
    "_TakeDataset",
    "_ZipDataset",
)

# Stages that keep nothing outside a pass, if their functions do not.
_KEEPING_NOTHING = (
    *_EAGER,
    "CacheDataset",
    "_ConcatenateDataset",
    "_FlatMapDataset",
    "_RangeDataset",
    "_RepeatDataset",
    "_RestructuredDataset",
    "_ShuffleDataset",
    "_TensorDataset",
    "_TensorSliceDataset",
    "_UnbatchDataset",
)

_MOST_WRITTEN_OUT_BYTES = 4 << 20

UNKNOWN = 0  # where the `id` of a tensor would be

_DRAWING_OPS = ("Multinomial", "Parameterized", "Random", "SampleDistorted", "Truncated")

_WRITING_OPS = (
    "Assign",
    "LookupTableInsert",
    "LookupTableRemove",
    "ResourceApply",
    "ResourceScatter",
    "RngReadAndSkip",
    "RngSkip",
    "StatefulRandomBinomial",
    "StatefulStandardNormal",
    "StatefulTruncatedNormal",
    "StatefulUniform",
)


@looked_up_once
def reorders(dataset: Any) -> bool:
    """Whether another pass may bring the elements in another order, as a reshuffling `shuffle` does."""
    return any(_is_reordering(stage) for stage in stages_of(dataset))


def shuffles_of(data: Any) -> frozenset[int]:
    """Returns what tells the stages that draw a new order for each iterator; they live as long as `data`.

    Pipelines made from one of them draw from the same seeds in turn. Sources of functions that are not
    found count as one, `UNKNOWN`. Other data than a dataset has none.
    """
    unknown = {UNKNOWN} if hides_a_source(data) else set()
    return frozenset(unknown.union(id(each._variant_tensor) for each in stages_of(data) if reorders(each)))


def cache_files(data: Any) -> frozenset[str]:
    """Returns the names of the files in which a pipeline caches elements; other data has none.

    The first pass over such a pipeline writes the file; until it has ended no other pass may begin.
    """
    files = [getattr(stage, "_filename", None) for stage in stages_of(data) if is_cache(stage)]
    names = (bytes(file.numpy()).decode() for file in files if isinstance(file, tf.Tensor))
    return frozenset(name for name in names if name)  # that in memory has the empty name


def is_cache(stage: tf.data.Dataset) -> bool:
    """Whether a stage caches elements, in memory or in a file."""
    return type(stage).__name__ == "CacheDataset"


def is_repeatable(dataset: tf.data.Dataset) -> bool:
    """Whether each pass over a dataset gives the same batches, as far as its operations tell.

    False for datasets with random operations or Python functions in them, that reshuffle, and that read what
    code may set.
    """
    nodes = (node for stage in stages_of(dataset) for node in function_nodes(stage))
    if reorders(dataset) or read_by(dataset) or any(node.op.startswith("RandomDataset") for node in nodes):
        return False
    captured = (each for stage in stages_of(dataset) for each in captured_datasets(stage))
    return all(map(_keeps_nothing_outside, [dataset, *captured]))


@looked_up_once
def _keeps_nothing_outside(dataset: tf.data.Dataset) -> bool:
    """Whether TensorFlow finds no state outside a dataset: no seeds, and nothing of Python's.

    To find out it writes out the whole dataset; of one that embeds much its operations have to tell.
    """
    if sum(map(_embedded_bytes, stages_of(dataset))) > _MOST_WRITTEN_OUT_BYTES:
        return all(map(_is_known_to_keep_nothing, stages_of(dataset)))
    refuse = 2
    try:
        tf.raw_ops.DatasetToGraphV2(
            input_dataset=dataset._variant_tensor, external_state_policy=refuse, strip_device_assignment=True
        )
    except tf.errors.OpError:
        return False
    return True


def _embedded_bytes(stage: tf.data.Dataset) -> int:
    """Returns the size of the tensors that a stage holds: of arrays, or captured by its functions."""
    captured = [tensor for function in stage._functions() for tensor in function.function.captured_inputs]
    tensors = [*getattr(stage, "_tensors", ()), *captured]
    return sum(size_bytes(tensor) for tensor in tensors if tensor.dtype not in (tf.resource, tf.variant))


def _is_known_to_keep_nothing(stage: tf.data.Dataset) -> bool:
    effects = (find_effects(function.function.graph) for function in stage._functions())
    return type(stage).__name__ in _KEEPING_NOTHING and not keeps_state(stage) and not any(effects)


@looked_up_once
def draws_lazily(dataset: Any) -> bool:
    """Whether some shuffle draws its seeds later than when an iterator is made.

    Then making an iterator again is not enough to draw the same seeds again: of two shuffles in a row, for
    a shuffle that is repeated and for one that is cached. A shuffle that is repeated without end is made with
    the only iterator that there will be.
    """
    endless = dataset.cardinality() == tf.data.INFINITE_CARDINALITY
    eager = (*_EAGER, "_RepeatDataset") if endless else _EAGER
    left = [dataset]
    while left:
        stage = left.pop()
        if any(map(reorders, captured_datasets(stage))):
            return True
        if not _is_reordering(stage) and type(stage).__name__ in eager:
            left += stage._inputs()
        elif any(reorders(source) for source in stage._inputs()):
            return True
    return False


@looked_up_once
def keeps_state(dataset: Any) -> bool:
    """Whether a function of the pipeline writes to state outside it, so that a pass depends on earlier ones.

    That is how `tf.random.Generator` and Keras's random layers draw in `Dataset.map`.
    """
    if hides_a_source(dataset):
        return True
    return any(op.startswith(_WRITING_OPS) for stage in stages_of(dataset) for op in _function_ops(stage))


@looked_up_once
def keeps_more_than_variables(dataset: Any) -> bool:
    """Whether a function of the pipeline writes to what no variable holds that it has captured: a table.

    Drawing from an iterator or a queue counts as writing.
    """
    if hides_a_source(dataset):
        return True
    for function in (function for stage in stages_of(dataset) for function in stage._functions()):
        concrete = function.function
        writing = {node.op for node in nodes_of(concrete) if node.op.startswith(_WRITING_OPS)}
        written = any(variable.written for variable in captured_variables(concrete))
        if any(op.startswith("LookupTable") for op in writing) or (writing and not written):
            return True
    return False


@looked_up_once
def hides_a_source(dataset: Any) -> bool:
    """Whether a function of the pipeline draws from what is not known; see `hides_sources`."""
    return any(map(hides_sources, stages_of(dataset)))


@looked_up_once
def caches_draws(dataset: Any) -> bool:
    """Whether a cache holds what has been drawn below it: made again, it would hold other draws."""
    sources = [source for each in stages_of(dataset) if is_cache(each) for source in each._inputs()]
    drawing = (op for source in sources for stage in stages_of(source) for op in _function_ops(stage))
    return any(map(keeps_state, sources)) or any(op.startswith(_DRAWING_OPS) for op in drawing)


@looked_up_once
def draws_orders(dataset: Any) -> bool:
    """Whether a `scan` draws from an unknown seed, which decides on the rest of the pass.

    So does the shuffle of Hugging Face's `to_tf_dataset` unless TensorFlow has a global seed.
    """
    scans = [stage for stage in stages_of(dataset) if type(stage).__name__ == "_ScanDataset"]
    draws = [node for scan in scans for node in function_nodes(scan) if "seed2" in node.attr]
    return any(node.attr["seed"].i == 0 and node.attr["seed2"].i == 0 for node in draws)


@looked_up_once
def calls_python(dataset: Any) -> bool:
    """Whether Python takes part in a pipeline, as in `py_function` and `from_generator`.

    A function that only looks rows up by their number does not count.
    """
    return not all(map(is_lookup, python_functions(dataset)))


@looked_up_once
def looks_up_rows(dataset: Any) -> bool:
    """Whether Python takes part in a pipeline and only looks rows up by their number."""
    return not calls_python(dataset) and bool(python_functions(dataset))


@looked_up_once
def python_draws_at_pass(dataset: Any) -> bool:
    """Whether the Python in a pipeline depends on nothing but global seeds as a pass begins."""
    functions = python_functions(dataset)
    alike = all(is_lookup(function) or makes_passes_alike(function) for function in functions)
    kept = reorders(dataset) or keeps_state(dataset) or draws_orders(dataset) or bool(read_by(dataset))
    return bool(functions) and alike and not kept


@looked_up_once
def captured_by(dataset: Any) -> list[CapturedVariable]:
    """Returns the variables that the functions of a pipeline read or write, each once."""
    found = {
        id(variable.handle): variable
        for stage in stages_of(dataset)
        for function in stage._functions()
        for variable in captured_variables(function.function)
    }
    return list(found.values())


@looked_up_once
def read_by(dataset: Any) -> list[str]:
    """Returns the names of what a pass reads and code may set: variables, then others."""
    functions = [function.function for stage in stages_of(dataset) for function in stage._functions()]
    tables = ["a lookup table" for function in functions if find_tables(function)]
    hidden = ["an iterator, a queue or a dataset that is not found"] if hides_a_source(dataset) else []
    return [*(variable.name for variable in captured_by(dataset)), *tables[:1], *hidden]


def python_functions(dataset: Any) -> list[Any]:
    """Returns the functions that a pipeline calls in Python; None for each that cannot be found."""
    nodes = [node for stage in stages_of(dataset) for node in function_nodes(stage) if "PyFunc" in node.op]
    found = [python_function(node.attr["token"].s) for node in nodes]
    return [*found, None] if hides_a_source(dataset) else found


def _is_reordering(stage: tf.data.Dataset) -> bool:
    return any(bool(getattr(stage, flag, False)) for flag in ("_reshuffle_each_iteration", "_rerandomize"))


def stages_of(dataset: Any) -> Iterator[tf.data.Dataset]:
    """Yields a dataset and all that it is made from, with what its functions have captured."""
    return own_stages(dataset, lambda stage: [*stage._inputs(), *captured_datasets(stage)])


def _function_ops(stage: tf.data.Dataset) -> set[str]:
    """Returns the types of all operations in the functions of one stage and in those that they call."""
    return {node.op for node in function_nodes(stage)}


def function_nodes(stage: tf.data.Dataset) -> Iterator[Any]:
    """Yields all operations in the functions of one stage and in those that they call."""
    for function in stage._functions():
        yield from nodes_of(function.function)


def prepared_batches(dataset: Any, preprocess: Preprocess | None) -> Any:
    """Returns what a training or a validation runs of a user's pipeline: prepared, without autotune.

    Other data comes back as it is, unless a function is to prepare it.
    """
    if preprocess is not None:
        dataset = dataset.map(lambda *batch: prepare(preprocess, batch if len(batch) > 1 else batch[0]))
    if isinstance(dataset, tf.data.Dataset) and _is_begun_ahead(dataset):
        dataset = dataset.prefetch(1)
    return without_autotune(dataset)


@looked_up_once
def _is_begun_ahead(dataset: tf.data.Dataset) -> bool:
    """Whether Keras has the next pass begun when the last batch of one has been drawn, and that can be seen.

    Behind the last batch of a repeated shuffle TensorFlow's prefetching draws the next order, so
    that another pipeline with the same seeds gets the one after.
    """
    repeats = (stage for stage in stages_of(dataset) if type(stage).__name__ == "_RepeatDataset")
    return _is_prefetched(dataset) and not _runs_ahead(dataset) and any(map(reorders, repeats))


@looked_up_once
def is_asked_for_its_end(dataset: Any) -> bool:
    """Whether Keras has the end of a pass drawn, too, whose length it knows, and that can be seen.

    By prefetching: thereby a cache that does not know its length, or is written to a file, learns that it
    holds all. How far that gets before Keras lets go of an iterator is a matter of time; almost always it
    does.
    """
    if not isinstance(dataset, tf.data.Dataset):
        return False
    caches = [stage for stage in stages_of(dataset) if is_cache(stage)]
    waits = cache_files(dataset) or any(each.cardinality() == tf.data.UNKNOWN_CARDINALITY for each in caches)
    return bool(waits) and (_is_prefetched(dataset) or _runs_ahead(dataset))


def _is_prefetched(dataset: tf.data.Dataset) -> bool:
    """Whether TensorFlow has a pipeline prefetch: unless it is told not to."""
    options = dataset.options()
    return options.autotune.enabled is None and (
        options.experimental_optimization.inject_prefetch is not False
        and options.experimental_optimization.apply_default_optimizations is not False
    )


def _runs_ahead(dataset: tf.data.Dataset) -> bool:
    """Whether a pipeline ends with a stage that draws ahead."""
    while type(dataset).__name__ == "_OptionsDataset":
        (dataset,) = dataset._inputs()
    name = type(dataset).__name__
    return name == "_PrefetchDataset" or name.startswith("_Parallel")
