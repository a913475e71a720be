"""What `fit` and `evaluate` are given as data, as Keras understands it.

Leans on `get_data_adapter` and its adapters, `ArrayDataAdapter._inputs`, `array_slicing` and
`_variant_tensor`.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras.src.trainers.data_adapters import (
    ArrayDataAdapter,
    array_data_adapter,
    array_slicing,
    get_data_adapter,
)
from keras.src.trainers.data_adapters.data_adapter import DataAdapter
from keras.src.trainers.data_adapters.generator_data_adapter import GeneratorDataAdapter
from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter

__all__ = [
    "DataAdapter",
    "adapt",
    "are_dense",
    "array_inputs",
    "array_order_dataset",
    "is_array_adapter",
    "is_repeatable",
    "is_rewindable_adapter",
    "is_tf_dataset_adapter",
    "split_validation",
    "without_optionals",
]


def adapt(
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    batch_size: int | None = None,
    steps: int | None = None,
    shuffle: bool | str = False,
    class_weight: dict[int, float] | None = None,
) -> DataAdapter:
    """Returns the adapter that `keras.Model.fit` would use for this data (`get_data_adapter`).

    Keras warns that `shuffle`, which is True unless one says otherwise, does nothing for datasets and
    generators; here it is dropped for them without a word.
    """
    arrays = array_data_adapter.can_convert_arrays((x, y, sample_weight))
    if not arrays and not isinstance(x, keras.utils.PyDataset):
        shuffle = False
    return get_data_adapter(
        x=x,
        y=y,
        sample_weight=sample_weight,
        batch_size=batch_size,
        steps_per_epoch=steps,
        shuffle=shuffle,
        class_weight=class_weight,
    )


def is_array_adapter(adapter: DataAdapter) -> bool:
    return isinstance(adapter, ArrayDataAdapter)


def is_tf_dataset_adapter(adapter: DataAdapter) -> bool:
    return isinstance(adapter, TFDatasetAdapter)


def is_rewindable_adapter(adapter: DataAdapter) -> bool:
    """Whether another iterator of this data starts from the first batch again; a generator's does not."""
    return not isinstance(adapter, GeneratorDataAdapter)


def is_repeatable(dataset: tf.data.Dataset) -> bool:
    """Whether each pass over a dataset gives the same batches, as far as its operations tell.

    False for datasets with random operations or Python functions in them.
    """
    refuse = 2
    try:
        tf.raw_ops.DatasetToGraphV2(
            input_dataset=dataset._variant_tensor, external_state_policy=refuse, strip_device_assignment=True
        )
    except tf.errors.FailedPreconditionError:
        return False
    except tf.errors.OpError:
        # Too large to be written out, such as gigabytes of embedded arrays, and nothing was found before.
        return True
    return True


def array_inputs(adapter: ArrayDataAdapter) -> Any:
    """Returns the arrays of an adapter as Keras batches them: `(x, y, sample_weight)` or a part of it.

    Floating-point arrays have Keras's `floatx`, weights are made from `class_weight`, sparse arrays are
    wrapped (`ArrayDataAdapter._inputs`, `array_slicing.convert_to_sliceable`).
    """
    inputs = array_slicing.convert_to_sliceable(adapter._inputs, target_backend="tensorflow")
    return keras.tree.lists_to_tuples(inputs)


def are_dense(inputs: Any) -> bool:
    """Whether all of an adapter's arrays are dense, so that rows can be gathered and sliced."""
    sparse = (tf.RaggedTensor, tf.SparseTensor)
    return not any(leaf is None or isinstance(leaf, sparse) for leaf in keras.tree.flatten(inputs))


def array_order_dataset(num_samples: int, batch_size: int, shuffle: bool | str) -> tf.data.Dataset:
    """Returns a dataset whose passes yield row numbers, int64[n], in the order of `keras.Model.fit`.

    The row numbers themselves go through Keras's own adapter, so the same global seed gives the same
    order. A shuffle over all rows does not depend on the batch size and comes in one piece.
    """
    rows = tf.range(num_samples, dtype=tf.int64)
    if shuffle != "batch":
        batch_size = num_samples
    adapter = ArrayDataAdapter(rows, batch_size=batch_size, shuffle=shuffle)
    return adapter.get_tf_dataset()


def split_validation(arrays: Any, fraction: float) -> tuple[Any, Any]:
    """Splits the last `fraction` of the rows off, as `validation_split` does."""
    train, validation = array_slicing.train_validation_split(arrays, validation_split=fraction)
    return train, validation


def without_optionals(batch: Any) -> Any:
    """Turns the empty optionals by which `tf.data` carries a None back into None, as Keras does."""
    return keras.tree.map_structure(
        lambda leaf: None if isinstance(leaf, tf.experimental.Optional) else leaf, batch
    )
