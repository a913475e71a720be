"""What training in parts or under `tf.distribute` needs of Keras.

Each function names the private name on which it leans. All are called while tracing, on the training thread
or on the threads that `tf.distribute` runs for it, one at a time.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from overlap_train._keras.metrics import metric_leaves
from overlap_train._keras.models import is_stock_method, set_until
from overlap_train._keras.names import get_stateless_scope, in_stateless_scope, loss_module
from overlap_train._keras.optimizers import inner_optimizer

AddedLoss = tuple[keras.Layer, tf.Tensor]
"""A term that `layer.add_loss` or an activity regulariser added, and its layer."""


def optimizer_strategy(optimizer: Any) -> Any:
    """Return the strategy whose scope made an optimizer (`_distribution_strategy`)."""
    return optimizer._distribution_strategy


def symbolic_build(model: keras.Model, element_spec: Any) -> None:
    """Make all variables of a compiled model as Keras does, in the strategy's scope (`_symbolic_build`)."""
    batch = keras.tree.map_structure(lambda s: s if isinstance(s, tf.TensorSpec) else None, element_spec)
    model._symbolic_build(data_batch=batch)


def row_loss(model: keras.Model) -> str | None:
    """Return the name of the stock loss of a row that the compiled loss averages over a batch, or None."""
    compiled = model._compile_loss
    if compiled is None or not compiled.built or len(compiled._flat_losses) != 1:
        return None
    loss = compiled._flat_losses[0].loss
    function = getattr(loss, "fn", None)
    options = getattr(loss, "_fn_kwargs", {})
    name = str(getattr(function, "__name__", ""))
    is_stock = is_stock_method(type(loss)) and is_stock_method(function) and name in _ROW_FUNCTIONS
    by_row = options.get("axis", -1) == -1 and options.get("ignore_class") is None
    averages = is_stock and by_row and loss.reduction == "sum_over_batch_size"
    return name if averages else None


# Functions of `keras.losses` and `keras.metrics` with one value for each row or element. Not `hinge`, which
# looks at all labels of a batch to tell 0 and 1 from -1 and 1.
_ROW_FUNCTIONS = frozenset(
    {"binary_crossentropy", "categorical_crossentropy", "sparse_categorical_crossentropy", "kl_divergence"}
    | {"mean_squared_error", "mean_absolute_error", "mean_absolute_percentage_error"}
    | {"mean_squared_logarithmic_error", "huber", "log_cosh", "categorical_hinge", "poisson"}
    | {"cosine_similarity"}
)


def compute_loss(model: keras.Model, x: Any, y: Any, y_pred: Any, sample_weight: Any) -> Any:
    """Return a batch's loss as `train_step` computes it (`_compute_loss`)."""
    return model._compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=True)


def track_loss(model: keras.Model, x: Any, loss: Any) -> None:
    """Count the loss of a batch, whose rows are those of the tensors in `x` (`_loss_tracker`)."""
    rows = tf.shape(next(leaf for leaf in keras.tree.flatten(x) if leaf is not None))[0]
    model._loss_tracker.update_state(loss, sample_weight=rows)


def additional_losses(model: keras.Model) -> list[Any]:
    """Return the terms that `compute_loss` adds to the compiled loss (`_aggregate_additional_loss`)."""
    return [model._aggregate_additional_loss(loss) for loss in model.losses]


LOGITS, MASK = "_keras_logits", "_keras_mask"


def carried_by(tensor: Any) -> dict[str, Any]:
    """Return what an output carries: the `LOGITS` from which crossentropies compute, and its `MASK`."""
    found = {name: getattr(tensor, name, None) for name in (LOGITS, MASK)}
    return {name: value for name, value in found.items() if value is not None}


_unscaled = threading.local()


def unscaled_losses() -> contextlib.ExitStack:
    """Compute losses on this thread as if there were one replica (`scale_loss_for_distribution`).

    Keras divides a loss by the number of replicas. Nothing in the block may wait for another replica.
    """
    undo = contextlib.ExitStack()

    def unless_here(scale: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda value: value if getattr(_unscaled, "on", False) else scale(value)

    for name in ("scale_loss_for_distribution", "unscale_loss_for_distribution"):
        set_until(undo, loss_module, name, unless_here(getattr(loss_module, name)))
    set_until(undo, _unscaled, "on", True)
    return undo


def gradients_already_reduced(optimizer: Any) -> contextlib.ExitStack:
    """Let `apply_gradients` take gradients already summed over the replicas (`_all_reduce_sum_gradients`).

    Keras clips those of each replica; here the gradient of the whole batch is clipped, as on one device.
    """
    undo = contextlib.ExitStack()
    set_until(undo, inner_optimizer(optimizer), "_all_reduce_sum_gradients", list)
    return undo


Counted = dict[int, tuple[keras.Variable, tf.Tensor]]
"""Variables of metrics by their `id`, each with the value before it was first written to."""


def keep_apart(
    model: keras.Model, layers: Sequence[keras.Layer], patches: contextlib.ExitStack
) -> Callable[[list[AddedLoss], Counted], contextlib.ExitStack]:
    """Collect what a replica's forward pass adds with `add_loss`, and the metrics to which it writes.

    The returned function begins to, on a thread, until what it returns is closed. A metric whose
    state may not be a sum, because it has an `update_state` or `reset_state` of its own, is a ValueError.
    """
    local = threading.local()

    def apart(added: list[AddedLoss], counted: Counted) -> contextlib.ExitStack:
        undo = contextlib.ExitStack()
        set_until(undo, local, "added", added)
        set_until(undo, local, "counted", counted)
        return undo

    def adding(layer: keras.Layer) -> Callable[[Any], None]:
        stock = layer.add_loss

        def add_loss(loss: Any) -> None:
            if hasattr(local, "added"):
                local.added.extend((layer, term) for term in keras.tree.flatten(loss))
            else:
                stock(loss)

        return add_loss

    def counting(metric: keras.metrics.Metric, variable: keras.Variable) -> Callable[[Any], Any]:
        stock = variable.assign

        def assign(value: Any) -> Any:
            if hasattr(local, "counted"):
                if not all(map(is_stock_method, (metric.update_state, metric.reset_state))):
                    raise ValueError(
                        f"the model's call updates the metric {metric.name!r}, whose update_state is not "
                        "Keras's own: what it counts of each replica's rows cannot be put together. Update "
                        "it in compute_loss, or train on one device"
                    )
                local.counted.setdefault(id(variable), (variable, tf.convert_to_tensor(variable.value)))
            return stock(value)

        return assign

    for layer in layers:
        set_until(patches, layer, "add_loss", adding(layer))
    for metric in metric_leaves(model):
        for variable in metric.variables:
            set_until(patches, variable, "assign", counting(metric, variable))
    return apart


def place_added_losses(model: keras.Model, added: Sequence[AddedLoss]) -> None:
    """Make `model.losses` return these terms in addition to regularisers (`_losses`, `_loss_ids`)."""
    model._clear_losses()
    scope = get_stateless_scope() if in_stateless_scope() else None
    for layer, term in added:
        if scope is None:
            layer._losses.append(term)
        else:
            scope.add_loss(term)
            layer._loss_ids.add(id(term))


class UpdatesApart(keras.StatelessScope):  # type: ignore[misc]
    """Keeps what is assigned to variables, to be assigned later; metrics are written at once, or not at all.

    `add_loss` counts inside. The weights are read at the start, where a gradient tape sees it: regularisers
    get the scope's values.
    """

    def __init__(self, model: keras.Model, *, counts: bool) -> None:
        weights = [(variable, tf.convert_to_tensor(variable.value)) for variable in model.trainable_variables]
        super().__init__(weights, collect_losses=True)
        self._counts = counts
        self._written: dict[int, keras.Variable] = {}

    def add_update(self, update: tuple[keras.Variable, Any]) -> None:
        """Take an assignment (`_direct_assign`)."""
        variable, value = update
        if variable.synchronization != "on_read":
            self._written[id(variable)] = variable
        elif self._counts:
            variable._direct_assign(value)
            return
        super().add_update(update)

    def assign(self) -> None:
        """Make the assignments to what is no metric, which all replicas make together."""
        for variable in self._written.values():
            variable.assign(self.get_current_value(variable))
