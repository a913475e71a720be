"""The only door to Keras's private API, used where nothing public serves.

Each function says which private name it leans on; `tests/test_keras_door.py` fails, name by name, when a
new Keras moves one.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import tensorflow as tf
from keras.src.trainers import compile_utils
from keras.src.trainers.data_adapters import (
    ArrayDataAdapter,
    array_data_adapter,
    array_slicing,
    get_data_adapter,
)
from keras.src.trainers.data_adapters.data_adapter import DataAdapter
from keras.src.trainers.data_adapters.generator_data_adapter import GeneratorDataAdapter
from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter
from keras.src.utils.python_utils import pythonify_logs
from tensorflow.python.framework import config as tf_config

__all__ = [
    "DataAdapter",
    "adam_moments",
    "adapt",
    "additional_losses",
    "are_dense",
    "array_inputs",
    "array_order_dataset",
    "averages_rows",
    "capped_epochs",
    "compiled_metrics_built",
    "compiled_parts",
    "compute_and_track_loss",
    "compute_loss",
    "flat_layers",
    "flatten_logs",
    "forward",
    "initial_epoch",
    "is_array_adapter",
    "is_deterministic",
    "is_repeatable",
    "is_rewindable_adapter",
    "is_stock_method",
    "is_tf_dataset_adapter",
    "metric_leaves",
    "profiles",
    "python_logs",
    "recurrent_states",
    "require_compiled",
    "row_loss",
    "scope_variable_ids",
    "split_validation",
    "track_loss",
    "tracks_each_loss",
    "without_all_reduce",
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


def python_logs(logs: Any) -> dict[str, float]:
    """Turns logs of tensors into logs of floats, flat, as callbacks get them (`pythonify_logs`)."""
    return dict(pythonify_logs(logs))


def flatten_logs(model: keras.Model, logs: dict[str, float]) -> Any:
    """Returns metrics as `keras.Model.evaluate` does without `return_dict` (`_flatten_metrics_in_order`)."""
    return model._flatten_metrics_in_order(logs)


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


def require_compiled(model: keras.Model) -> None:
    """Raises Keras's own ValueError unless `model.compile` has been called."""
    if not getattr(model, "compiled", False):
        raise ValueError(
            f"the model {model.name!r} is not compiled; call "
            "model.compile(optimizer=..., loss=..., metrics=[...]) before Trainer.fit or Trainer.evaluate"
        )


def compiled_metrics_built(model: keras.Model) -> bool:
    """Whether every layer, metric, loss and optimizer of `model` has made its variables."""
    parts = [model._compile_metrics, model._compile_loss, model.optimizer]
    return all(layer.built for layer in model._flatten_layers()) and all(
        part is None or part.built for part in parts
    )


def metric_leaves(model: keras.Model) -> list[keras.metrics.Metric]:
    """Returns the metrics of `model` one by one, with the containers that `compile` makes opened."""
    leaves: list[keras.metrics.Metric] = []

    def add(metrics: Iterable[keras.metrics.Metric]) -> None:
        for metric in metrics:
            if isinstance(metric, (compile_utils.CompileMetrics, compile_utils.MetricsList)):
                add(metric.metrics)
            elif not any(metric is leaf for leaf in leaves):
                leaves.append(metric)

    add(model.metrics)
    return leaves


def is_stock_method(method: Any) -> bool:
    """Whether a bound method, function or class is Keras's own and not a user's override."""
    function = getattr(method, "__func__", method)
    # Not a function's `__module__`: `functools.wraps` copies it to what a user puts around one of Keras's.
    module = getattr(function, "__globals__", {}).get("__name__") or getattr(function, "__module__", "")
    return str(module).split(".")[0] == "keras"


def averages_rows(model: keras.Model) -> bool:
    """Whether loss and metrics of several batches together are those of one batch of all their rows.

    They are if the loss is an average over rows of stock losses, and each metric a stock one whose state sums
    what each row gives it. What a user has written, or what divides by a number that differs from batch to
    batch (masks, an ignored class, losses of a whole batch such as Dice), is not known to be.
    """
    metrics = model._compile_metrics
    if row_loss(model) is None or not (metrics is None or metrics.built):
        return False
    return all(metric is model._loss_tracker or _sums_rows(metric) for metric in metric_leaves(model))


def row_loss(model: keras.Model) -> str | None:
    """The name of the stock loss of a row that the compiled loss averages over a batch, if it does."""
    loss = model._compile_loss
    if loss is None or not loss.built or len(loss._flat_losses) != 1:
        return None
    (resolved,) = (entry.loss for entry in loss._flat_losses)
    function = getattr(resolved, "fn", None)
    options = getattr(resolved, "_fn_kwargs", {})
    known = is_stock_method(type(resolved)) and _is_stock_function(function, _ROW_FUNCTIONS)
    by_row = options.get("axis", -1) == -1 and options.get("ignore_class") is None
    averages = known and by_row and resolved.reduction == "sum_over_batch_size"
    return str(getattr(function, "__name__", "")) if averages else None


def _sums_rows(metric: keras.metrics.Metric) -> bool:
    if not is_stock_method(type(metric)):
        return False
    if isinstance(metric, keras.metrics.MeanMetricWrapper):
        by_row = metric._fn_kwargs.get("axis", -1) == -1
        return by_row and _is_stock_function(metric._fn, _ROW_FUNCTIONS | _ROW_METRICS)
    return isinstance(metric, (keras.metrics.Precision, keras.metrics.Recall, keras.metrics.AUC))


def _is_stock_function(function: Any, names: frozenset[str]) -> bool:
    return is_stock_method(function) and getattr(function, "__name__", None) in names


# Of `keras.losses` and `keras.metrics`: one value for each row, or each element of it. Not `hinge`, which
# looks at all labels of a batch to tell 0 and 1 from -1 and 1.
_ROW_FUNCTIONS = frozenset(
    (
        "binary_crossentropy",
        "categorical_crossentropy",
        "sparse_categorical_crossentropy",
        "mean_squared_error",
        "mean_absolute_error",
        "mean_absolute_percentage_error",
        "mean_squared_logarithmic_error",
        "huber",
        "log_cosh",
        "categorical_hinge",
        "kl_divergence",
        "poisson",
        "cosine_similarity",
    )
)
_ROW_METRICS = frozenset(
    (
        "accuracy",
        "binary_accuracy",
        "categorical_accuracy",
        "sparse_categorical_accuracy",
        "top_k_categorical_accuracy",
        "sparse_top_k_categorical_accuracy",
    )
)


def without_optionals(batch: Any) -> Any:
    """Turns the empty optionals by which `tf.data` carries a None back into None, as Keras does."""
    return keras.tree.map_structure(
        lambda leaf: None if isinstance(leaf, tf.experimental.Optional) else leaf, batch
    )


def initial_epoch(model: keras.Model, default: int) -> int:
    """Returns where BackupAndRestore found that training goes on (`_initial_epoch`), or `default`."""
    return getattr(model, "_initial_epoch", None) or default


def profiles(callback: keras.callbacks.TensorBoard) -> bool:
    """Whether a TensorBoard callback profiles batches (`_should_trace`)."""
    return bool(callback._should_trace)


def capped_epochs(epochs: int) -> int:
    """Returns a number of epochs, capped as `keras.config.set_max_epochs` says for debugging."""
    limit = keras.config.max_epochs()
    return min(epochs, int(limit)) if limit else epochs


def forward(model: keras.Model, x: Any) -> Any:
    """Calls a model for training as its `train_step` does (`_call_has_training_arg`)."""
    return model(x, training=True) if model._call_has_training_arg else model(x)


def compute_loss(model: keras.Model, x: Any, y: Any, y_pred: Any, sample_weight: Any) -> Any:
    """Returns a batch's loss as `train_step` computes it (`_compute_loss`)."""
    return model._compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=True)


def compute_and_track_loss(model: keras.Model, x: Any, y: Any, y_pred: Any, sample_weight: Any) -> Any:
    """Returns a batch's loss and counts it, as `train_step` does."""
    loss = compute_loss(model, x, y, y_pred, sample_weight)
    track_loss(model, x, loss)
    return loss


def track_loss(model: keras.Model, x: Any, loss: Any) -> None:
    """Counts the loss of a batch of x (`_loss_tracker`)."""
    rows = tf.shape(next(leaf for leaf in keras.tree.flatten(x) if leaf is not None))[0]
    model._loss_tracker.update_state(loss, sample_weight=rows)


def additional_losses(model: keras.Model) -> list[Any]:
    """Returns what `compute_loss` adds to the compiled loss, as it does (`_aggregate_additional_loss`)."""
    return [model._aggregate_additional_loss(loss) for loss in model.losses]


def flat_layers(model: keras.Model) -> list[keras.Layer]:
    """Returns a model and all layers in it (`_flatten_layers`)."""
    return list(model._flatten_layers())


def recurrent_states(model: keras.Model) -> list[keras.Variable]:
    """Returns what stateful RNNs keep from batch to batch, which is not in `model.variables` (`states`)."""
    layers = (layer for layer in flat_layers(model) if getattr(layer, "stateful", False))
    states = (leaf for layer in layers for leaf in keras.tree.flatten(getattr(layer, "states", None)))
    known = {id(variable) for variable in model.variables}
    found = {id(v): v for v in states if isinstance(v, keras.Variable) and id(v) not in known}
    return list(found.values())


def scope_variable_ids(scope: keras.StatelessScope) -> set[int]:
    """Returns the `id` of every variable that has a value in a scope (`state_mapping`)."""
    return set(scope.state_mapping)


def tracks_each_loss(model: keras.Model) -> bool:
    """Whether Keras averages the losses of several outputs one by one (`_compile_loss.metrics`)."""
    loss = model._compile_loss
    return loss is not None and bool(loss.metrics)


@contextlib.contextmanager
def without_all_reduce(optimizer: keras.optimizers.Optimizer | None) -> Iterator[None]:
    """Spares the sum of gradients over the replicas where there is one (`_all_reduce_sum_gradients`).

    The sum of one changes nothing, but TensorFlow registers a gradient function for it, for ever, that
    keeps the graph of the whole step alive: each trained model would leave its graphs behind.
    """
    changed = []
    while optimizer is not None:
        stock = optimizer._all_reduce_sum_gradients
        if is_stock_method(stock):
            vars(optimizer)["_all_reduce_sum_gradients"] = functools.partial(_sum_over_replicas, stock)
            changed.append(optimizer)
        optimizer = getattr(optimizer, "inner_optimizer", None)
    try:
        yield
    finally:
        for each in changed:
            del vars(each)["_all_reduce_sum_gradients"]


def _sum_over_replicas(stock: Callable[[Any], Any], gradients_and_variables: Any) -> Any:
    pairs = list(gradients_and_variables)
    return stock(pairs) if tf.distribute.get_strategy().num_replicas_in_sync > 1 else pairs


def adam_moments(optimizer: keras.optimizers.Adam, variable: tf.Variable) -> tuple[tf.Variable, tf.Variable]:
    """Returns the first and second moment of a variable (`_momentums`, `_velocities`)."""
    index = optimizer._get_variable_index(variable)
    return optimizer._momentums[index].value, optimizer._velocities[index].value


def is_deterministic() -> bool:
    """Whether `tf.config.experimental.enable_op_determinism` has been called."""
    return bool(tf_config.is_op_determinism_enabled())


def compiled_parts(model: keras.Model) -> tuple[Any, Any]:
    """Returns the loss and the metrics that `compile` has made (`_compile_loss`, `_compile_metrics`)."""
    return model._compile_loss, model._compile_metrics
