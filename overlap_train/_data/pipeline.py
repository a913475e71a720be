"""What the operations of a `tf.data` pipeline tell about another pass over it, and how it is run.

Read from the pipeline's Python objects, without running or copying any data. TensorFlow has no public way
to ask; `tests/data/test_pipeline.py` fails where the private names used here move. With Keras, TensorFlow
appends a stage that prefetches. Where the next pass would show it, a pipeline is run the same way here.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from overlap_train._data.batches import prepare, size_bytes
from overlap_train._data.pipeline_facts import looked_up_once, unwrapped, without_autotune
from overlap_train._inspection.effects import find_effects, is_kept
from overlap_train._inspection.graph import nodes_of, python_function
from overlap_train._inspection.tables import find_tables
from overlap_train._inspection.traced import CapturedVariable, captured_variables
from overlap_train._support.fit_arguments import Preprocess

# Stages that make their inputs' iterators along with their own. Any other stage may do so when the first
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

_MOST_SERIALIZED_BYTES = 4 << 20

UNKNOWN = 0  # in place of the `id` of a tensor

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
    return any(map(is_reordering, stages_of(dataset)))


def shuffles_of(data: Any) -> frozenset[int]:
    """Returns the ids of the stages that draw a new order for each iterator; they live as long as `data`.

    Pipelines made from one of them draw from the same seeds in turn. All unknown sources of functions count
    as one, `UNKNOWN`. Data other than a dataset has none.
    """
    unknown = {UNKNOWN} if hides_a_source(data) else set()
    return frozenset(unknown.union(id(stage._variant_tensor) for stage in stages_of(data) if reorders(stage)))


def cache_files(data: Any) -> frozenset[str]:
    """Returns the names of the files in which a pipeline caches elements; other data has none.

    The first pass over such a pipeline writes the file; until it has ended no other pass may begin.
    """
    files = [getattr(cache, "_filename", None) for cache in _caches_of(data)]
    names = (bytes(file.numpy()).decode() for file in files if isinstance(file, tf.Tensor))
    return frozenset(name for name in names if name)  # a cache in memory has the empty name


def is_repeatable(dataset: tf.data.Dataset) -> bool:
    """Whether each pass over a dataset gives the same batches, as far as its operations tell.

    False for datasets with random operations or Python functions in them, that reshuffle, that read what code
    may set, and that print or write in each pass.
    """
    if reorders(dataset) or read_by(dataset) or _has_operation(dataset, "RandomDataset", "Print", "Write"):
        return False
    return _keeps_nothing_outside(dataset)


# Operations and stages whose elements are in files, which may be written between two passes.
_READING = re.compile(
    r"IO>.*|(Whole)?(Read|Matching)?Files?(Dataset|Reader.*)?|Restore.*"
    r"|_?(Experimental)?(CSV|Csv|FixedLengthRecord|LMDB|Load|Snapshot|Sql|TFRecord|TextLine)Dataset.*"
)


@looked_up_once
def reads_files(dataset: Any) -> bool:
    """Whether each pass over a pipeline reads files anew, as it does not below a `cache`."""
    left = [dataset]
    while left:
        stage = unwrapped(left.pop())
        if isinstance(stage, tf.data.Dataset) and type(stage).__name__ != "CacheDataset":
            names = (type(stage).__name__, *(node.op for node in function_nodes(stage)))
            if any(map(_READING.fullmatch, names)):
                return True
            left += stage._inputs()
    return False


@looked_up_once
def _keeps_nothing_outside(dataset: tf.data.Dataset) -> bool:
    """Whether TensorFlow finds no state outside a dataset: no seeds, and nothing of Python's.

    TensorFlow serializes the whole dataset to find out. One that embeds much data is judged by its stages.
    """
    if sum(map(_embedded_bytes, stages_of(dataset))) > _MOST_SERIALIZED_BYTES:
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

    Then making an iterator again does not draw the same seeds again: of two shuffles in a row, of a shuffle
    that is repeated, and of one that is cached. A shuffle that is repeated without end draws with the only
    iterator that there will be.
    """
    endless = dataset.cardinality() == tf.data.INFINITE_CARDINALITY
    eager = (*_EAGER, "_RepeatDataset") if endless else _EAGER
    left = [dataset]
    while left:
        stage = unwrapped(left.pop())
        if not is_reordering(stage) and type(stage).__name__ in eager:
            left += stage._inputs()
        elif any(map(reorders, stage._inputs())):
            return True
    return False


@looked_up_once
def keeps_state(dataset: Any) -> bool:
    """Whether a function of the pipeline writes to state outside it, so that a pass depends on earlier ones.

    That is how `tf.random.Generator` and Keras's random layers draw in `Dataset.map`.
    """
    return hides_a_source(dataset) or _has_operation(dataset, *_WRITING_OPS)


@looked_up_once
def keeps_more_than_variables(dataset: Any) -> bool:
    """Whether a function of the pipeline writes to something other than the variables that it captured.

    That is a table, an iterator or a queue: drawing from the last two counts as writing.
    """
    if hides_a_source(dataset):
        return True
    for function in _functions_of(dataset):
        writes = {node.op for node in nodes_of(function.graph) if node.op.startswith(_WRITING_OPS)}
        if any(op.startswith("LookupTable") for op in writes):
            return True
        if writes and not any(variable.written for variable in captured_variables(function)):
            return True
    return False


@looked_up_once
def hides_a_source(dataset: Any) -> bool:
    """Whether the pipeline draws from a source that is no input of its stages.

    That is a dataset that a function has captured or that says no inputs, such as the choice of
    `choose_from_datasets`, an iterator, a queue, a file that is written, the clock.
    """
    functions = list(_functions_of(dataset))
    captured = (tensor.dtype == tf.variant for each in functions for tensor in each.captured_inputs)
    nodes = (node for each in functions for node in nodes_of(each.graph))
    unknown = any(type(stage).__name__ == "_VariantDataset" for stage in stages_of(dataset))
    return unknown or any(captured) or not all(is_kept(n.op) or _HARMLESS.fullmatch(n.op) for n in nodes)


@looked_up_once
def caches_draws(dataset: Any) -> bool:
    """Whether a cache holds what has been drawn below it: made again, it would hold other draws."""
    sources = [source for cache in _caches_of(dataset) for source in cache._inputs()]
    return any(keeps_state(source) or _has_operation(source, *_DRAWING_OPS) for source in sources)


@looked_up_once
def draws_orders(dataset: Any) -> bool:
    """Whether a `scan` draws from an unknown seed, which decides on the rest of the pass.

    So does the shuffle of Hugging Face's `to_tf_dataset` unless TensorFlow has a global seed.
    """
    scans = (stage for stage in stages_of(dataset) if type(stage).__name__ == "_ScanDataset")
    return any(map(is_unseeded, (node for scan in scans for node in function_nodes(scan))))


def is_unseeded(node: Any) -> bool:
    """Whether an operation draws at random without a seed."""
    return "seed2" in node.attr and not (node.attr["seed"].i or node.attr["seed2"].i)


@looked_up_once
def calls_python(dataset: Any) -> bool:
    """Whether Python takes part in a pipeline, as in `py_function` and `from_generator`.

    A function that only looks rows up by their number does not count.
    """
    return not all(map(is_lookup, python_functions(dataset)))


@looked_up_once
def captured_by(dataset: Any) -> list[CapturedVariable]:
    """Returns the variables that the functions of a pipeline read or write, each once."""
    variables = (each for function in _functions_of(dataset) for each in captured_variables(function))
    return list({id(variable.handle): variable for variable in variables}.values())


@looked_up_once
def read_by(dataset: Any) -> list[str]:
    """Returns the names of what a pass reads and code may set: variables, then others."""
    tables = ["a lookup table"] if any(map(find_tables, _functions_of(dataset))) else []
    hidden = ["an iterator, a queue or a captured dataset"] if hides_a_source(dataset) else []
    return [*(variable.name for variable in captured_by(dataset)), *tables, *hidden]


def python_functions(dataset: Any) -> list[Any]:
    """Returns the functions that a pipeline calls in Python; None for each that cannot be found."""
    nodes = (
        node
        for function in _functions_of(dataset)
        for node in nodes_of(function.graph)
        if "PyFunc" in node.op
    )
    functions = [python_function(node.attr["token"].s) for node in nodes]
    return [*functions, None] if hides_a_source(dataset) else functions


def is_reordering(stage: tf.data.Dataset) -> bool:
    # `None` is a shuffle that begins anew, too.
    again = getattr(stage, "_reshuffle_each_iteration", False) is not False
    return again or bool(getattr(stage, "_rerandomize", False))


def _caches_of(dataset: Any) -> list[tf.data.Dataset]:
    """Returns the stages that cache elements, in memory or in a file."""
    return [stage for stage in stages_of(dataset) if type(stage).__name__ == "CacheDataset"]


def _functions_of(dataset: Any) -> Iterator[Any]:
    """Yields the traced functions of all stages."""
    return (function.function for stage in stages_of(dataset) for function in stage._functions())


def function_nodes(stage: tf.data.Dataset) -> Iterator[Any]:
    """Yields all operations in the functions of one stage and in those that they call."""
    for function in stage._functions():
        yield from nodes_of(function.function.graph)


@looked_up_once
def _operations(dataset: Any) -> frozenset[str]:
    """Returns the types of all operations in the functions of a pipeline."""
    return frozenset(node.op for function in _functions_of(dataset) for node in nodes_of(function.graph))


def _has_operation(dataset: Any, *prefixes: str) -> bool:
    return any(op.startswith(prefixes) for op in _operations(dataset))


def prepared_batches(dataset: Any, preprocess: Preprocess | None) -> Any:
    """Returns the user's pipeline as a training or a validation runs it: prepared, without autotune.

    Other data comes back as it is, unless it is to be prepared by `preprocess`.
    """
    if preprocess is not None:
        dataset = dataset.map(lambda *batch: prepare(preprocess, batch if len(batch) > 1 else batch[0]))
    if isinstance(dataset, tf.data.Dataset) and _is_begun_ahead(dataset):
        dataset = dataset.prefetch(1)
    return without_autotune(dataset)


@looked_up_once
def _is_begun_ahead(dataset: tf.data.Dataset) -> bool:
    """Whether Keras begins the next pass when it has drawn a pass's last batch, and later draws show it.

    Behind the last batch of a repeated shuffle TensorFlow's prefetching draws the next order, so that another
    pipeline with the same seeds gets the one after.
    """
    repeats = (stage for stage in stages_of(dataset) if type(stage).__name__ == "_RepeatDataset")
    return _is_prefetched(dataset) and not _runs_ahead(dataset) and any(map(reorders, repeats))


@looked_up_once
def is_asked_for_its_end(dataset: Any) -> bool:
    """Whether Keras draws the end of a pass whose length it knows, too, and later passes show it.

    It does so by prefetching. A cache of unknown length, or one that is written to a file, learns in this way
    that it is complete, and so does a snapshot. Prefetching almost always gets there before Keras lets go of
    the iterator.
    """
    if not isinstance(dataset, tf.data.Dataset):
        return False
    of_unknown_length = (c.cardinality() == tf.data.UNKNOWN_CARDINALITY for c in _caches_of(dataset))
    snapshots = (type(stage).__name__ == "_SnapshotDataset" for stage in stages_of(dataset))
    if not (cache_files(dataset) or any(of_unknown_length) or any(snapshots)):
        return False
    return _is_prefetched(dataset) or _runs_ahead(dataset)


def _is_prefetched(dataset: tf.data.Dataset) -> bool:
    """Whether TensorFlow adds prefetching to a pipeline: unless its options forbid it."""
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
        stage = unwrapped(left.pop())
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
