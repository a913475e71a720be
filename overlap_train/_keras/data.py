"""The data of `fit` and `evaluate`: which kind it is and how it can be read, decided once, as Keras would.

Leans on `get_data_adapter` and its adapters, `_inputs` and `_num_samples` of `ArrayDataAdapter`, `enqueuer`
of `PyDatasetAdapter` and `array_slicing`. On the training thread, except for `Pipeline.begin_epoch` and
`end_epoch`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any, Literal

import keras
import tensorflow as tf

from overlap_train._keras.data_sources import DataWorkers
from overlap_train._keras.names import (
    BEFORE_3_16,
    ArrayDataAdapter,
    EpochIterator,
    GeneratorDataAdapter,
    GrainDatasetAdapter,
    PyDatasetAdapter,
    TFDatasetAdapter,
    array_slicing,
    can_convert_arrays,
    get_data_adapter,
)
from overlap_train._keras.tracebacks import warn_as_keras

# The end of the data. Keras catches these from batch hooks too, as it calls them where it draws the batches.
OUT_OF_DATA = (StopIteration, tf.errors.OutOfRangeError)


@dataclass(frozen=True, eq=False)
class Pipeline:
    """Batches that come one after another: a dataset of the user's, or what Keras makes of other data."""

    is_dataset: bool  # the user's own: a new iterator of it may advance a shuffle's seed
    by_python: bool  # the user's Python makes the batches
    restarts: bool  # a new iterator starts from the first batch; a generator's goes on
    # Whether a pass that is repeated in another process, from the same state of the source, is known to give
    # the same batches: by index, from a generator, from Grain.
    resumable: bool
    stateful: Any  # the user's object whose attributes are that state
    # Whether Keras draws its first batch before the first pass of a training and before each validation
    # (`_maybe_symbolic_build`), and can draw it again: this advances whatever the user's data draws from.
    # How many batches a generator loses depends on timing; here it loses none.
    looked_at: bool
    adapter: Any = field(repr=False)
    _workers: DataWorkers | None = field(repr=False)

    @functools.cached_property
    def dataset(self) -> Any:
        """The `tf.data.Dataset` of each pass, or the user's distributed one."""
        return self.adapter.get_tf_dataset()

    @property
    def peeked(self) -> int:
        """The number of batches that Keras has drawn of a generator; each iterator begins with them."""
        return len(getattr(self.adapter, "_first_batches", ()))

    @property
    def num_batches(self) -> int | None:
        """The batches of a pass, or None if they cannot be counted. Read anew each time, as data may grow."""
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
        """End the workers that Keras has started, once no batch is needed any more. Idempotent."""
        if self._workers is not None:
            self._workers.end()


@dataclass(frozen=True, eq=False)
class Arrays:
    """Arrays whose rows become batches."""

    # `(x, y, sample_weight)` or a part of it, as Keras batches them: with floating-point arrays of Keras's
    # `floatx`, with weights made from `class_weight`, and sparse arrays wrapped.
    inputs: Any
    num_samples: int
    batch_size: int
    shuffle: bool | str
    dense: bool  # rows can be gathered and sliced
    pipeline: Pipeline = field(repr=False)


def row_order(num_samples: int, batch_size: int, shuffle: bool | str) -> tf.data.Dataset:
    """Return a dataset whose passes yield row numbers, int64[n], as Keras's own adapter orders them.

    A shuffle of all rows does not depend on the batch size and is a single batch.
    """
    rows = tf.range(num_samples, dtype=tf.int64)
    size = batch_size if shuffle == "batch" else num_samples
    return ArrayDataAdapter(rows, batch_size=size, shuffle=shuffle).get_tf_dataset()


@functools.cache
def row_shuffling() -> Literal["random", "fixed", "counted"]:
    """Return how Keras orders rows: at random in each pass, always the same way, or by the epoch's number.

    At random up to Keras 3.15. Later adapters count epochs (`_epoch`); what they do with the number is tried
    here.
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
    """Whether Python makes the batches, so that `recognize` draws the first ones."""
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
    """Return the data of `keras.Model.fit` or `evaluate` as Keras reads it (`get_data_adapter`).

    `role` is for messages; `looked_at` says that Keras draws a batch beforehand, see `looks_beforehand`. Data
    that Keras cannot read, and empty data other than a dataset to validate on, raise ValueError.
    """
    require_usable(x, y, sample_weight, role=role)
    adapter = get_data_adapter(
        x=x,
        y=y,
        sample_weight=sample_weight,
        batch_size=batch_size,
        steps_per_epoch=steps,
        shuffle=shuffle,
        class_weight=class_weight,
    )
    pipeline = _pipeline(adapter, x, looked_at)
    if isinstance(adapter, ArrayDataAdapter):
        return _arrays(adapter, shuffle, pipeline)
    # Keras goes on training if a dataset has nothing to validate on, and fails if Python has nothing.
    if pipeline.num_batches == 0 and (role == "training" or pipeline.by_python):
        raise ValueError(f"the {role} data is empty: its dataset has no batch; pass at least one")
    return pipeline


def require_usable(x: Any, y: Any = None, sample_weight: Any = None, *, role: str) -> None:
    """Raise ValueError for data that can be seen to be unusable without drawing from it."""
    if x is None:
        raise ValueError(
            f"there is no {role} data: x is None; pass arrays, a tf.data.Dataset, a keras.utils.PyDataset "
            "or a generator of batches"
        )
    if isinstance(x, (tf.distribute.DistributedDataset, tf.distribute.DistributedIterator)):
        raise ValueError(
            f"the {role} data is a {type(x).__name__}, whose batches are divided among replicas already; "
            "pass the tf.data.Dataset from which it was made"
        )
    if can_convert_arrays((x, y, sample_weight)):
        rows = [leaf.shape[0] for leaf in keras.tree.flatten(x) if len(getattr(leaf, "shape", ()) or ())]
        if rows and rows[0] == 0:
            raise ValueError(f"the {role} data is empty: its arrays have 0 rows; pass at least one")


# Keras's text in `EpochIterator._interrupted_warning`, which would warn of the line that calls it.
_OUT_OF_DATA = (
    "Your input ran out of data; interrupting training. Make sure that your dataset or generator can "
    "generate at least `steps_per_epoch * epochs` batches. You may need to use the `.repeat()` function when "
    "building your dataset."
)


def split_validation(arrays: Any, fraction: float) -> tuple[Any, Any]:
    """Split off the last `fraction` of the rows, as `validation_split` does."""
    train, validation = array_slicing.train_validation_split(arrays, validation_split=fraction)
    return train, validation


def warn_out_of_data(*, asked: bool = True, known: bool = False) -> None:
    """Warn as Keras does that data has run out: up to 3.15 even if no number was `asked` for.

    Keras warns of two lines: where the length of the data is `known`, and where it finds no more.
    """
    if asked or BEFORE_3_16:
        giver = EpochIterator._enumerate_iterator if known else EpochIterator.catch_stop_iteration
        warn_as_keras(_OUT_OF_DATA, giver, "_interrupted_warning")


def without_optionals(batch: Any) -> Any:
    """Replace the empty optionals that stand for None in a `tf.data.Dataset`, as Keras does."""
    return keras.tree.map_structure(
        lambda leaf: None if isinstance(leaf, tf.experimental.Optional) else leaf, batch
    )


def _pipeline(adapter: Any, x: Any, looked_at: bool) -> Pipeline:
    enqueuer = getattr(adapter, "enqueuer", None)
    return Pipeline(
        is_dataset=isinstance(adapter, TFDatasetAdapter),
        by_python=not isinstance(adapter, (ArrayDataAdapter, TFDatasetAdapter)),
        restarts=not isinstance(adapter, GeneratorDataAdapter),
        resumable=isinstance(adapter, (GeneratorDataAdapter, GrainDatasetAdapter, PyDatasetAdapter)),
        stateful=x if isinstance(adapter, PyDatasetAdapter) else None,
        looked_at=looked_at and not isinstance(adapter, (ArrayDataAdapter, GeneratorDataAdapter)),
        adapter=adapter,
        _workers=None if enqueuer is None else DataWorkers(enqueuer),
    )


def _arrays(adapter: Any, shuffle: bool | str, pipeline: Pipeline) -> Arrays:
    inputs = keras.tree.lists_to_tuples(
        array_slicing.convert_to_sliceable(adapter._inputs, target_backend="tensorflow")
    )
    inputs = keras.tree.map_structure(
        lambda leaf: tf.convert_to_tensor(leaf.value) if isinstance(leaf, keras.Variable) else leaf, inputs
    )
    leaves = keras.tree.flatten(inputs)
    dense = not any(leaf is None or isinstance(leaf, (tf.RaggedTensor, tf.SparseTensor)) for leaf in leaves)
    return Arrays(inputs, int(adapter._num_samples), adapter.batch_size, shuffle, dense, pipeline)
