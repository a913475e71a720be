"""What keeps a batch from being divided into parts that a model treats one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from overlap_train._keras import data as keras_data
from overlap_train._keras import methods as keras_methods
from overlap_train._keras import models as keras_models
from overlap_train._keras import replicas as keras_replicas
from overlap_train._keras import training as keras_training
from overlap_train._training.dropout import dropout_layers
from overlap_train._training.step import Batch

__all__ = ["find_obstacle", "rows_correspond", "unknown_layer"]

_ROW_BY_ROW = frozenset(
    (
        "InputLayer",
        "Sequential",
        "Functional",
        "Identity",
        "Dense",
        "EinsumDense",
        "Embedding",
        "Flatten",
        "Reshape",
        "Permute",
        "RepeatVector",
        "Activation",
        "ReLU",
        "LeakyReLU",
        "PReLU",
        "ELU",
        "Softmax",
        "Rescaling",
        "Dropout",
        "Add",
        "Subtract",
        "Multiply",
        "Average",
        "Maximum",
        "Minimum",
        "Concatenate",
        "Conv1D",
        "Conv2D",
        "Conv3D",
        "Conv1DTranspose",
        "Conv2DTranspose",
        "Conv3DTranspose",
        "DepthwiseConv1D",
        "DepthwiseConv2D",
        "SeparableConv1D",
        "SeparableConv2D",
        "MaxPooling1D",
        "MaxPooling2D",
        "MaxPooling3D",
        "AveragePooling1D",
        "AveragePooling2D",
        "AveragePooling3D",
        "GlobalMaxPooling1D",
        "GlobalMaxPooling2D",
        "GlobalMaxPooling3D",
        "GlobalAveragePooling1D",
        "GlobalAveragePooling2D",
        "GlobalAveragePooling3D",
        "ZeroPadding1D",
        "ZeroPadding2D",
        "ZeroPadding3D",
        "Cropping1D",
        "Cropping2D",
        "Cropping3D",
        "UpSampling1D",
        "UpSampling2D",
        "UpSampling3D",
        "LayerNormalization",
        "GroupNormalization",
        "RMSNormalization",
        "UnitNormalization",
        "LSTM",
        "LSTMCell",
        "GRU",
        "GRUCell",
        "SimpleRNN",
        "SimpleRNNCell",
        "Bidirectional",
        "MultiHeadAttention",
        "Attention",
        "AdditiveAttention",
    )
)

_TENSORFLOWS = (
    *(tf.nn.elu, tf.nn.gelu, tf.nn.leaky_relu, tf.nn.log_softmax, tf.nn.relu, tf.nn.relu6, tf.nn.selu),
    *(tf.nn.sigmoid, tf.nn.silu, tf.nn.softmax, tf.nn.softplus, tf.nn.softsign, tf.nn.tanh, tf.identity),
)
"""Activations beside Keras's own that do not look at other rows."""


def find_obstacle(model: keras.Model, element_spec: Any, *, trusted: bool = False) -> str | None:
    """Say why a step of a built and compiled model cannot be split, or return None if it can.

    The model is traced once, without being run and without changing it. With `trusted`, the user vouches for
    layers of which nothing is known: each row of their outputs depends on its own row of the inputs only.
    """
    if not keras_methods.is_stock_method(model.train_step):
        return f"{type(model).__name__}.train_step is not Keras's own"
    if model.optimizer is None or not model.trainable_weights:
        return "there is nothing to train"
    if tf.distribute.get_strategy().num_replicas_in_sync > 1:
        return "replicas share each batch already"
    unknown = None if trusted else unknown_layer(model)
    if unknown is not None:
        return f"nothing is known of whether {unknown} treats each row of a batch by itself"
    if not trusted and _is_plain(model, element_spec):
        return None
    return _Probe(model).obstacle(element_spec)


def _is_plain(model: keras.Model, element_spec: Any) -> bool:
    """Whether a model of known layers tells without a trace that there is no obstacle.

    A model that Keras has built from symbolic tensors tells the shapes of its outputs, and none of its layers
    keeps state, adds losses or makes masks unless it was asked to.
    """
    if not all(isinstance(spec, tf.TensorSpec) for spec in keras.tree.flatten(element_spec)):
        return False
    symbolic = [*(getattr(model, "inputs", None) or ()), *(getattr(model, "outputs", None) or ())]
    if not symbolic or not all(len(tensor.shape) > 1 and tensor.shape[0] is None for tensor in symbolic):
        return False
    x = keras.tree.flatten(keras.utils.unpack_x_y_sample_weight(element_spec)[0])
    if len({spec.shape[:1].as_list()[0] for spec in x if spec.shape.rank}) != 1:
        return False
    dropping = set(map(id, dropout_layers(model)))
    for layer in keras_models.flat_layers(model):
        draws = any(getattr(layer, name, 0) for name in ("rate", "dropout", "recurrent_dropout"))
        draws = draws and getattr(layer, "seed_generator", None) is not None and id(layer) not in dropping
        keeps = any(getattr(layer, name, None) for name in ("stateful", "mask_zero", "activity_regularizer"))
        if draws or keeps:
            return False
    return True


def unknown_layer(model: keras.Model, *, also: Sequence[str] = ()) -> str | None:
    """Return the first layer or operation that might mix the rows of a batch, unless `also` names it."""
    for layer in keras_models.flat_layers(model):
        kind = type(layer)
        # A Model subclass has a `call` of its own, even where its base class is known.
        if kind.__module__.split(".")[0] != "keras" or kind.__name__ not in (*_ROW_BY_ROW, *also):
            return f"{kind.__name__} {layer.name!r}"
        axis = getattr(layer, "axis", None)
        # One below -1 may be the rows', depending on how many there are.
        axes = axis if isinstance(axis, (list, tuple)) else [axis]
        if not all(a is None or a > 0 or a == -1 for a in axes):
            return f"{kind.__name__} {layer.name!r} with axis {axis}"
        for activation in (getattr(layer, "activation", None), getattr(layer, "recurrent_activation", None)):
            if not (
                activation is None or keras_methods.is_stock_method(activation) or activation in _TENSORFLOWS
            ):
                return f"the activation of {kind.__name__} {layer.name!r}"
        for operation in getattr(layer, "operations", ()):
            if not isinstance(operation, keras.Layer):
                return f"the operation {operation.name!r}"
    return None


class _Probe:
    """Traces a model's forward pass to see what it does beside computing outputs from inputs."""

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._found: str | None = None

    def obstacle(self, element_spec: Any) -> str | None:
        x = keras.utils.unpack_x_y_sample_weight(keras_data.without_optionals(element_spec))[0]
        given = [spec for spec in keras.tree.flatten(x) if isinstance(spec, tf.TensorSpec)]
        if len({spec.shape[0] for spec in given if spec.shape.rank}) > 1:
            return "its inputs differ in their number of rows"
        specs = keras.tree.map_structure(_with_any_batch, element_spec)
        try:
            tf.function(self._look, autograph=False).get_concrete_function(specs)
        except (TypeError, ValueError, tf.errors.OpError) as error:
            first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
            return f"it cannot be traced with batches of any size: {first_line[:200]}"
        return self._found

    def _look(self, batch: Batch) -> tf.Tensor:
        x, _, _ = keras.utils.unpack_x_y_sample_weight(keras_data.without_optionals(batch))
        model = self._model
        variables = [*model.trainable_variables, *model.non_trainable_variables, *model.metrics_variables]
        before = {id(v): v.value.read_value() for v in variables}
        mapping = [(v, before[id(v)]) for v in variables]
        allowed = {id(layer.seed_generator.state) for layer in dropout_layers(model)}
        with keras.StatelessScope(state_mapping=mapping, collect_losses=True) as scope:
            outputs = [
                leaf for leaf in keras.tree.flatten(keras_training.forward(model, x)) if leaf is not None
            ]
        changed = [v.path for v in variables if scope.get_current_value(v) is not before[id(v)]]
        written = keras_models.scope_variable_ids(scope) - before.keys()
        seeds = {v.path for v in variables if id(v) in allowed}
        state = [path for path in changed if path not in seeds]
        if any(leaf is not None and leaf.shape.rank == 0 for leaf in keras.tree.flatten(x)):
            self._found = "an input has no batch axis"
        elif any(isinstance(leaf, tf.SparseTensor) for leaf in keras.tree.flatten(x)):
            self._found = "an input is sparse"
        elif state or written:
            self._found = (
                f"training changes state of the model: {state[0] if state else 'a random generator'}"
            )
        elif scope.losses:
            self._found = "add_loss or an activity regulariser adds a loss that depends on the batch"
        elif any(leaf.shape.rank in (None, 0) or leaf.shape[0] is not None for leaf in outputs):
            self._found = "an output has no row for each row of the inputs"
        elif any(keras_replicas.mask_of(leaf) is not None for leaf in outputs):
            self._found = "an output carries a mask, whose weights are those of the whole batch"
        return tf.constant(0)


def _with_any_batch(spec: Any) -> Any:
    if not isinstance(spec, tf.TensorSpec) or not spec.shape.rank:
        return spec
    return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype)


def rows_correspond(
    labels: tf.TensorShape, outputs: tf.TensorShape, weights: tf.TensorShape | None, *, classes: bool
) -> bool:
    """Whether Keras pairs each row of one output with its own label and weight.

    Otherwise it broadcasts, maybe each row with all labels, or reduces the rows as an output's last axis. The
    labels' rank is known. With `classes`, a label is the index of one of the outputs along the last axis.
    """
    rank = outputs.rank
    given = [labels] if weights is None else [labels, weights]
    if rank < 2 or any(not shape.rank or shape[0] != outputs[0] for shape in given):
        return False
    one_less = classes or outputs[1:] == [1]
    paired = labels.rank == rank or (labels.rank == rank - 1 and one_less)
    if weights is None:
        return paired
    # A loss has no last axis; weights may have one of length one where only the rows' is left.
    column = rank == 2 and weights[1:] == [1]
    return paired and (weights.rank == rank - 1 or column)
