"""The only door to Keras's private API, used where nothing public serves.

Each function says which private name it leans on; `tests/keras/test_door.py` fails, name by name, when a
new Keras moves one.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer as KerasTrainer
from keras.src.backend.tensorflow.trainer import TFEpochIterator
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
    "KerasTrainer",
    "adam_moments",
    "adapt",
    "additional_losses",
    "are_dense",
    "array_inputs",
    "array_order_dataset",
    "averages_rows",
    "begin_training",
    "build_optimizer",
    "capped_epochs",
    "capped_steps",
    "compiled_metrics_built",
    "compiled_parts",
    "compute_and_track_loss",
    "compute_loss",
    "evaluate_as_in_fit",
    "flat_layers",
    "flatten_logs",
    "forget_evaluation",
    "forward",
    "has_own_test_function",
    "initial_epoch",
    "is_array_adapter",
    "is_deterministic",
    "is_keras_class",
    "is_repeatable",
    "is_rewindable_adapter",
    "is_stock_method",
    "is_tf_dataset_adapter",
    "is_trainer",
    "method_cell",
    "metric_leaves",
    "metrics_by_python",
    "metrics_or_logs",
    "overrides",
    "patched_by",
    "profiles",
    "python_logs",
    "require_compiled",
    "require_model",
    "row_loss",
    "runs_eagerly",
    "scope_variable_ids",
    "split_validation",
    "steps_per_execution",
    "stock_metric_handles",
    "test_function",
    "track_loss",
    "tracks_each_loss",
    "train_function",
    "variable_handles",
    "without_all_reduce",
    "without_optionals",
]


# As Keras made it, whatever a library puts in its place later.
_stock_evaluate = KerasTrainer.evaluate
_STOCK: dict[str, Any] = {"fit": KerasTrainer.fit, "evaluate": _stock_evaluate}


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


def python_logs(logs: Any) -> dict[str, Any]:
    """Turns logs of tensors into flat logs of floats, or arrays, as callbacks get them (`pythonify_logs`)."""
    return dict(pythonify_logs(logs))


def metrics_or_logs(model: keras.Model, logs: Any) -> Any:
    """Returns the metrics' results where the logs have their names, else the logs.

    Keras's rule for the logs of an epoch and of a validation (`_get_metrics_result_or_logs`).
    """
    return model._get_metrics_result_or_logs(logs)


def steps_per_execution(model: keras.Model) -> int:
    """Returns how many steps Keras makes between two calls of the batch hooks (`steps_per_execution`)."""
    return int(getattr(model, "steps_per_execution", None) or 1)


def capped_steps(steps: int | None) -> int | None:
    """Returns steps of an epoch as `keras.config.set_max_steps_per_epoch` caps them, with Keras's warning."""
    limit = keras.config.max_steps_per_epoch()
    if not limit or (steps and steps <= limit):
        return steps
    warnings.warn(f"Limiting steps_per_epoch to {limit}", UserWarning, stacklevel=3)
    return int(limit)


def variable_handles(variable: keras.Variable) -> list[Any]:
    """Returns the resource handles of a variable's copies on all replicas, or its own (`value`)."""
    value = variable.value
    copies = value.values if isinstance(value, tf.distribute.DistributedValues) else (value,)
    return [copy.handle for copy in copies]


def is_trainer(model: object) -> bool:
    """Whether an object can be trained as a Keras model: a layer that is a Keras `Trainer` too."""
    return isinstance(model, KerasTrainer) and isinstance(model, keras.Layer)


def require_model(model: object, name: str = "model") -> None:
    """Raises TypeError unless `model` is a Keras model, or a layer that Keras can train."""
    if isinstance(model, keras.Model) or is_trainer(model):
        return
    if any(kind.__module__.split(".")[0] == "tf_keras" for kind in type(model).__mro__):
        raise TypeError(
            f"{name} must be a keras.Model; {type(model).__name__} is one of tf_keras, that is Keras 2: "
            "build it with Keras 3 (import keras), and do not set TF_USE_LEGACY_KERAS"
        )
    raise TypeError(f"{name} must be a keras.Model; got {type(model).__name__}")


def overrides(model: keras.Model, name: str) -> type | None:
    """Returns the class of a user's that has a method of its own in place of Keras's; None for Keras's.

    A function that a library puts into Keras's own class, as loggers do, is no override.
    """
    if name in vars(model):
        return type(model)  # set on the model itself
    owner = next((kind for kind in type(model).__mro__ if name in vars(kind)), object)
    return None if owner is object or _is_keras_module(owner.__module__) else owner


def patched_by(model: keras.Model, name: str) -> str | None:
    """Returns the module of what a library has put in place of Keras's own method of all models, or None."""
    found = getattr(type(model), name)
    if found is _STOCK[name] and is_stock_method(found):
        return None
    variables = getattr(found, "__globals__", {})
    return str(variables.get("__name__") or getattr(type(found), "__module__", "another module"))


def method_cell(name: str) -> Any:
    """Returns the cell in which Keras's method holds what it runs (`filter_traceback`, its variable `fn`).

    Raises:
        RuntimeError: this Keras keeps it elsewhere.
    """
    method = _STOCK[name]
    while method is not None:
        names = method.__code__.co_freevars
        if is_stock_method(method) and "fn" in names:
            return method.__closure__[names.index("fn")]
        method = getattr(method, "__wrapped__", None)  # as another library has wrapped it
    raise RuntimeError(f"keras.Model.{name} of Keras {keras.__version__} cannot be routed")


def is_keras_class(kind: type) -> bool:
    """Whether a class is one of Keras's."""
    return _is_keras_module(kind.__module__)


def evaluate_as_in_fit(
    model: keras.Model, data: Any, *, batch_size: int | None, steps: int | None, callbacks: Any
) -> Any:
    """Calls `model.evaluate` as `fit` does for a validation (`_eval_epoch_iterator`); returns its logs."""
    x, y, sample_weight = data
    evaluate = model.evaluate if overrides(model, "evaluate") else functools.partial(_stock_evaluate, model)
    if getattr(model, "_eval_epoch_iterator", None) is None:
        model._eval_epoch_iterator = TFEpochIterator(
            x=x,
            y=y,
            sample_weight=sample_weight,
            batch_size=batch_size,
            distribute_strategy=model.distribute_strategy,
            steps_per_execution=model.steps_per_execution,
            steps_per_epoch=steps,
            shuffle=False,
        )
    return evaluate(
        x=x,
        y=y,
        sample_weight=sample_weight,
        batch_size=batch_size,
        steps=steps,
        callbacks=callbacks,
        return_dict=True,
        _use_cached_eval_dataset=True,
    )


def forget_evaluation(model: keras.Model) -> None:
    """Lets go of what `evaluate_as_in_fit` keeps between two validations, as `fit` does at its end."""
    if getattr(model, "_eval_epoch_iterator", None) is not None:
        del model._eval_epoch_iterator


def runs_eagerly(model: keras.Model) -> bool:
    """Whether Keras runs a model's steps operation by operation; `tf.config.run_functions_eagerly` counts."""
    return bool(model.run_eagerly or tf.config.functions_run_eagerly())


def has_own_test_function(model: keras.Model) -> bool:
    """Whether a validation runs what a user has made, and not `test_step` (`make_test_function`)."""
    if overrides(model, "make_test_function"):
        return True
    return model.test_function is not None and not is_stock_method(model.test_function)


def metrics_by_python(model: keras.Model) -> str | None:
    """Returns what of a user's resets or reads the metrics by Python's state, or None.

    Keras runs these methods operation by operation, each time anew. Those that touch variables, tensors and
    other metrics only can be compiled; those whose code reads an attribute that is a plain value cannot.
    """
    if not is_stock_method(model.reset_metrics):
        return f"{type(model).__name__}.reset_metrics"
    if _reads_plain_values(model, model.get_metrics_result):
        return f"{type(model).__name__}.get_metrics_result"
    for metric in metric_leaves(model):
        for name in ("reset_state", "result"):
            if _reads_plain_values(metric, getattr(metric, name)):
                return f"{type(metric).__name__}.{name}"
    return None


def _reads_plain_values(owner: Any, method: Any) -> bool:
    code = getattr(getattr(method, "__func__", method), "__code__", None)
    if is_stock_method(method):
        return False
    if code is None:
        return True
    plain = (bool, int, float, str, list, tuple, dict, set)
    return any(isinstance(getattr(owner, name, None), plain) for name in code.co_names if name != "name")


def begin_training(model: keras.Model) -> Any:
    """Makes the model's train function as `fit` does, without tracing it; returns it (`train_function`).

    `compile` takes it away and `make_train_function(force=True)` makes another one: whoever holds this one
    can tell that a callback did so.
    """
    model.make_train_function()
    return model.train_function


def test_function(model: keras.Model) -> Any:
    """Returns the model's test function, made as `evaluate` does, without tracing it (`test_function`)."""
    model.make_test_function()
    return model.test_function


def train_function(model: keras.Model) -> Any:
    """Returns what `begin_training` returned, or what a callback has put in its place, or None."""
    return model.train_function


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


def stock_metric_handles(model: keras.Model) -> list[Any]:
    """Returns the handles of all variables of Keras's own metrics."""
    metrics = [metric for metric in metric_leaves(model) if is_stock_method(type(metric))]
    return [handle for m in metrics for v in m.variables for handle in variable_handles(v)]


def build_optimizer(model: keras.Model) -> None:
    """Builds the optimizer of a built model as its first update would (`Optimizer.apply`)."""
    optimizer = model.optimizer
    if not isinstance(optimizer, keras.optimizers.Optimizer) or optimizer.built:
        return
    if model.built and model.trainable_variables:
        with keras.name_scope(optimizer.name, caller=optimizer):
            optimizer.build(model.trainable_variables)
        optimizer.built = True


def is_stock_method(method: Any) -> bool:
    """Whether a bound method, function or class is Keras's own and not a user's override."""
    function = getattr(method, "__func__", method)
    # Not a function's `__module__`: `functools.wraps` copies it to what a user puts around one of Keras's.
    module = getattr(function, "__globals__", {}).get("__name__") or getattr(function, "__module__", "")
    return _is_keras_module(str(module))


def _is_keras_module(name: str) -> bool:
    """Whether a module is Keras's own, and not one of its tests, which are written as users write."""
    return name.split(".")[0] == "keras" and not name.endswith("_test")


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
    if not limit or epochs <= limit:
        return epochs
    warnings.warn(f"Limiting epochs to {limit}", UserWarning, stacklevel=3)
    return int(limit)


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
