"""What `fit` and `evaluate` are given as data: found out once, as Keras would, and told as plain facts.

Leans on `get_data_adapter` and its adapters, `_inputs` and `_num_samples` of `ArrayDataAdapter`, `generator`
of `GeneratorDataAdapter`, `_get_iterator` and `enqueuer` of `PyDatasetAdapter`, and `array_slicing`. On the
training thread, but for what an epoch's begin and end tell the user's data.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any, Literal

import keras
import tensorflow as tf

from overlap_train._keras.data_mistakes import refuse_plain_values
from overlap_train._keras.data_sources import BatchMaker, DataWorkers, told
from overlap_train._keras.names import (
    BEFORE_3_16,
    ArrayDataAdapter,
    GeneratorDataAdapter,
    GrainDatasetAdapter,
    PyDatasetAdapter,
    TFDatasetAdapter,
    array_slicing,
    can_convert_arrays,
    get_data_adapter,
)
from overlap_train._keras.tracebacks import warn_user

__all__ = [
    "OUT_OF_DATA",
    "Arrays",
    "Pipeline",
    "hugging_face_kind",
    "is_made_by_python",
    "recognize",
    "require_usable",
    "row_order",
    "row_shuffling",
    "split_validation",
    "warn_out_of_data",
    "without_optionals",
]


# What says that there is no more data, in hooks of batches too: Keras calls them where it draws the batches.
OUT_OF_DATA = (StopIteration, tf.errors.OutOfRangeError)


@dataclass(frozen=True, eq=False)
class Pipeline:
    """Batches that come one after another: a dataset of the user's, or what Keras makes of other data."""

    is_dataset: bool  # of the user's: a new iterator of it may advance a shuffle's seed
    by_python: bool  # of the user's, and not made by Keras of sparse arrays or a dataset
    restarts: bool  # another iterator starts from the first batch again; a generator's goes on
    # Whether drawing again from a pass's first batch on, in another process and from the same state of the
    # source, is known to give the same batches: by index, from a generator, from Grain.
    resumable: bool
    stateful: Any  # the user's object whose attributes are that state
    told: Any  # a dataset of Grain's that tells where it stands
    # Whether Keras draws its first batch before the first pass of a training and before each validation
    # (`_maybe_symbolic_build`), and it can be drawn again: thereby what the user's data draws from moves.
    # How many a generator loses depends on timing; here it loses none.
    looked_at: bool
    adapter: Any = field(repr=False)
    _lent: BatchMaker | None = field(repr=False)
    _workers: DataWorkers | None = field(repr=False)

    @functools.cached_property
    def dataset(self) -> Any:
        """What is iterated over in each pass: a `tf.data.Dataset`, or a distributed one of the user's."""
        return self.adapter.get_tf_dataset()

    @property
    def peeked(self) -> int:
        """Batches of a generator at which Keras has looked, and with which each of its iterators begins."""
        return len(getattr(self.adapter, "_first_batches", ()))

    def own_batches(self) -> bool:
        """Have no batch of a new iterator share memory with the user's arrays; return whether it can be had.

        It can of what a generator or a `PyDataset` gives, if it is dense.
        """
        specs = tf.nest.flatten(self.dataset.element_spec)
        if self._lent is None or not all(isinstance(spec, tf.TensorSpec) for spec in specs):
            return False
        self._lent.copies = True
        return True

    @property
    def num_batches(self) -> int | None:
        """Batches of a pass, or None if they cannot be counted; asked each time, as data may grow."""
        count: int | None = self.adapter.num_batches
        return count

    def begin_epoch(self) -> None:
        """Tell the user's data that an epoch begins (`PyDataset.on_epoch_begin`)."""
        self.adapter.on_epoch_begin()

    def end_epoch(self) -> None:
        """Tell the user's data that an epoch is over (`PyDataset.on_epoch_end`)."""
        self.adapter.on_epoch_end()

    def skip_epochs(self, count: int) -> None:
        """Count epochs that ended in another process; Keras 3.16 shuffles a `PyDataset` by it (`_epoch`)."""
        if isinstance(getattr(self.adapter, "_epoch", None), int):
            self.adapter._epoch += count

    def close(self) -> None:
        """End the workers that Keras has started for it; call it when nobody draws any more. Idempotent."""
        if self._workers is not None:
            self._workers.end()


@dataclass(frozen=True, eq=False)
class Arrays:
    """Arrays whose rows become batches."""

    # `(x, y, sample_weight)` or a part of it as Keras batches them: floating-point arrays have Keras's
    # `floatx`, weights are made from `class_weight`, sparse arrays are wrapped.
    inputs: Any
    num_samples: int
    batch_size: int
    shuffle: bool | str
    dense: bool  # so that rows can be gathered and sliced
    pipeline: Pipeline = field(repr=False)


def row_order(num_samples: int, batch_size: int, shuffle: bool | str) -> tf.data.Dataset:
    """Return a dataset whose passes yield row numbers, int64[n], in the order of `keras.Model.fit`.

    The row numbers themselves go through Keras's own adapter, so the same global seed gives the same order. A
    shuffle over all rows does not depend on the batch size and comes in one piece.
    """
    rows = tf.range(num_samples, dtype=tf.int64)
    size = batch_size if shuffle == "batch" else num_samples
    return ArrayDataAdapter(rows, batch_size=size, shuffle=shuffle).get_tf_dataset()


@functools.cache
def row_shuffling() -> Literal["random", "fixed", "counted"]:
    """Return how Keras shuffles rows: it draws an order for each pass, or has one, or one for each epoch.

    It draws up to Keras 3.15. Later adapters count epochs (`_epoch`) and shuffle without drawing, by a number
    that the pipeline holds; whether that number moves with the epochs is tried.
    """
    adapter = ArrayDataAdapter(tf.range(64), batch_size=64, shuffle=True)
    if not hasattr(adapter, "_epoch"):
        return "random"
    options = tf.data.Options()
    options.autotune.enabled = False
    passes = adapter.get_tf_dataset().with_options(options)
    graph = tf.raw_ops.DatasetToGraphV2(input_dataset=passes._variant_tensor, external_state_policy=1)
    if b"RandomShuffle" in graph.numpy():
        return "random"
    first = next(iter(passes)).numpy()
    adapter.on_epoch_end()
    return "fixed" if (next(iter(passes)).numpy() == first).all() else "counted"


def is_made_by_python(x: Any, y: Any = None, sample_weight: Any = None) -> bool:
    """Whether Python makes the batches of data, so that `recognize` draws the first ones to know them."""
    if isinstance(x, (tf.data.Dataset, tf.distribute.DistributedDataset)):
        return False
    return not can_convert_arrays((x, y, sample_weight))


def recognize(
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    role: Literal["training", "validation"] = "training",
    batch_size: int | None = None,
    steps: int | None = None,
    shuffle: bool | str = False,
    class_weight: dict[int, float] | None = None,
    looked_at: bool = False,
) -> Arrays | Pipeline:
    """Return what the first arguments of `keras.Model.fit` or `evaluate` are (`get_data_adapter`).

    Keras warns that `shuffle`, which is True unless one says otherwise, does nothing for datasets and
    generators. `role` is for messages; `looked_at` says that Keras looks at a batch beforehand, see
    `looks_beforehand`. A ValueError refuses data that Keras does not know, mismatched lengths, and empty data
    other than a dataset to validate on.
    """
    require_usable(x, y, sample_weight, role=role)
    telling = told(x)
    adapter = get_data_adapter(
        x=x if telling is None else telling,
        y=y,
        sample_weight=sample_weight,
        batch_size=batch_size,
        steps_per_epoch=steps,
        shuffle=shuffle,
        class_weight=class_weight,
    )
    pipeline = _pipeline(adapter, x, telling, looked_at)
    if isinstance(adapter, ArrayDataAdapter):
        return _arrays(adapter, shuffle, pipeline)
    # Keras trains on where a dataset has nothing to validate on, and fails where Python has nothing.
    if pipeline.num_batches == 0 and (role == "training" or pipeline.by_python):
        raise ValueError(f"the {role} data is empty: its dataset has no batch; pass at least one")
    return pipeline


def require_usable(x: Any, y: Any = None, sample_weight: Any = None, *, role: str) -> None:
    """Raise ValueError for data of which a look without drawing from it tells that it is of no use.

    That is no data, text, data without rows, and data that Keras does not know or that is divided.
    """
    for part in (x, y, sample_weight):
        _refuse_hugging_face(part, role)
    if x is None:
        raise ValueError(
            f"there is no {role} data: x is None; pass arrays, a tf.data.Dataset, a keras.utils.PyDataset "
            "or a generator of batches"
        )
    refuse_plain_values(x, y, sample_weight, role=role)
    if isinstance(x, (tf.distribute.DistributedDataset, tf.distribute.DistributedIterator)):
        raise ValueError(
            f"the {role} data is a {type(x).__name__}, whose batches are divided among replicas already; "
            "pass the tf.data.Dataset from which it was made"
        )
    if can_convert_arrays((x, y, sample_weight)):
        rows = [leaf.shape[0] for leaf in keras.tree.flatten(x) if len(getattr(leaf, "shape", ()) or ())]
        if rows and rows[0] == 0:
            raise ValueError(f"the {role} data is empty: its arrays have 0 rows; pass at least one")


# Keras's words in `EpochIterator._interrupted_warning`, which would name a line of its own.
_OUT_OF_DATA = (
    "Your input ran out of data; interrupting training. Make sure that your dataset or generator can "
    "generate at least `steps_per_epoch * epochs` batches. You may need to use the `.repeat()` function when "
    "building your dataset."
)


def hugging_face_kind(data: Any) -> str | None:
    """Return which class of Hugging Face's `datasets` data belongs to, or None if to none."""
    names = [cls.__name__ for cls in type(data).__mro__ if cls.__module__.split(".")[0] == "datasets"]
    return next((name for name in names if name in _INSTEAD), None)


_INSTEAD = {
    "Dataset": "data.to_tf_dataset(columns=..., label_cols=..., batch_size=...)",
    "IterableDataset": (
        'a generator of batches, such as ((b["x"], b["y"]) for b in data.with_format("numpy").iter(32)), and '
        "the number of steps"
    ),
    "DatasetDict": 'one of its splits, such as data["train"].to_tf_dataset(columns=..., batch_size=...)',
    "IterableDatasetDict": "a generator of the batches of one of its splits, and the number of steps",
    "Column": 'an array, data.with_format("numpy")["x"][:]',
}


def _refuse_hugging_face(data: Any, role: str) -> None:
    """Raise a ValueError that says what Keras takes in place of a dataset of Hugging Face's."""
    kind = hugging_face_kind(data)
    if kind is not None:
        raise ValueError(
            f"the {role} data is a Hugging Face {kind}, which Keras does not take; pass {_INSTEAD[kind]}"
        )


def split_validation(arrays: Any, fraction: float) -> tuple[Any, Any]:
    """Split the last `fraction` of the rows off, as `validation_split` does."""
    refuse_plain_values(*arrays, role="training")
    train, validation = array_slicing.train_validation_split(arrays, validation_split=fraction)
    return train, validation


def warn_out_of_data(*, asked: bool = True) -> None:
    """Warn in Keras's words that an epoch or a validation has found the end of its data.

    Keras up to 3.15 warns where no number of batches had been asked for, too (keras#23084).
    """
    if asked or BEFORE_3_16:
        warn_user(_OUT_OF_DATA)


def without_optionals(batch: Any) -> Any:
    """Turn the empty optionals by which `tf.data` carries a None back into None, as Keras does."""
    return keras.tree.map_structure(
        lambda leaf: None if isinstance(leaf, tf.experimental.Optional) else leaf, batch
    )


def _pipeline(adapter: Any, x: Any, telling: Any, looked_at: bool) -> Pipeline:
    return Pipeline(
        is_dataset=isinstance(adapter, TFDatasetAdapter),
        by_python=not isinstance(adapter, (ArrayDataAdapter, TFDatasetAdapter)),
        restarts=not isinstance(adapter, GeneratorDataAdapter),
        resumable=isinstance(adapter, (GeneratorDataAdapter, GrainDatasetAdapter, PyDatasetAdapter)),
        stateful=x if isinstance(adapter, PyDatasetAdapter) else None,
        told=telling,
        looked_at=looked_at and not isinstance(adapter, (ArrayDataAdapter, GeneratorDataAdapter)),
        adapter=adapter,
        _lent=_lent(adapter),
        _workers=_workers(adapter),
    )


def _lent(adapter: Any) -> BatchMaker | None:
    """Put itself between an adapter and the user's Python that makes its batches, if it can."""
    if isinstance(adapter, GeneratorDataAdapter):
        lent = BatchMaker(adapter.generator)
        adapter.generator = lent.iterate
        return lent
    if isinstance(adapter, PyDatasetAdapter):
        lent = BatchMaker(adapter._get_iterator)
        adapter._get_iterator = lent.iterate
        return lent
    return None


def _workers(adapter: Any) -> DataWorkers | None:
    """Put itself between an adapter and the pools that it starts for the user's data, if it starts any."""
    enqueuer = getattr(adapter, "enqueuer", None)
    return None if enqueuer is None else DataWorkers(enqueuer)


def _tensor_of(leaf: Any) -> Any:
    """Return what a variable of Keras's holds, and everything else as it is."""
    return tf.convert_to_tensor(leaf.value) if isinstance(leaf, keras.Variable) else leaf


def _arrays(adapter: Any, shuffle: bool | str, pipeline: Pipeline) -> Arrays:
    inputs = keras.tree.lists_to_tuples(
        array_slicing.convert_to_sliceable(adapter._inputs, target_backend="tensorflow")
    )
    inputs = keras.tree.map_structure(_tensor_of, inputs)
    leaves = keras.tree.flatten(inputs)
    dense = not any(leaf is None or isinstance(leaf, (tf.RaggedTensor, tf.SparseTensor)) for leaf in leaves)
    return Arrays(inputs, int(adapter._num_samples), adapter.batch_size, shuffle, dense, pipeline)
