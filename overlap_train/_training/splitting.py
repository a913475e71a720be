"""One training step whose batch is divided into parts that run at the same time on the cores of a CPU.

The parts' forward and backward passes are independent branches of one graph, so TensorFlow's inter-op threads
run them at the same time. Between them stands the loss, computed for the whole batch by the model's own
`compute_loss`:

    y_k = f(x_k; w) for each part k,    L = compute_loss(y, (y_1, y_2, ...)),
    dL/dw = sum_k (dy_k/dw)^T dL/dy_k + what the loss has from the weights directly (regularisers).

This is the gradient of the whole batch, with rounding in another order, for any loss, reduction, sample
weights and sizes of the parts; loss, metrics, loss scaling and clipping are computed once, as Keras does. It
needs each row of the outputs to depend on its own row of the inputs only; `find_obstacle` says where that
does not hold or cannot be known.

All parts wait there for the last of them, and so does a core with nothing left to do. Where the loss is known
to average the rows of one output, n_k of n in part k, nothing has to wait:

    L = sum_k n_k/n L_k,    L_k = loss(y_k)

and each part goes on to the gradient of its own addend.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from overlap_train._keras import models as keras_models
from overlap_train._keras import replicas as keras_replicas
from overlap_train._keras import training as keras_training
from overlap_train._training.parts import (
    Masks,
    Outputs,
    add_gradients,
    dropout_layers,
    leaves_of,
    row_count,
    rows_between,
    whole_batch_dropout,
)
from overlap_train._training.step import Batch, Logs, StepFunction

_ROW_BY_ROW = frozenset(
    (
        *("InputLayer", "Sequential", "Functional", "Identity", "Rescaling", "Dropout"),
        *("Dense", "EinsumDense", "Embedding", "Flatten", "Reshape", "Permute", "RepeatVector"),
        *("Activation", "ReLU", "LeakyReLU", "PReLU", "ELU", "Softmax"),
        *("Add", "Subtract", "Multiply", "Average", "Maximum", "Minimum", "Concatenate"),
        *("LayerNormalization", "GroupNormalization", "RMSNormalization", "UnitNormalization"),
        *("LSTM", "LSTMCell", "GRU", "GRUCell", "SimpleRNN", "SimpleRNNCell", "Bidirectional"),
        *("MultiHeadAttention", "Attention", "AdditiveAttention"),
        *("DepthwiseConv1D", "DepthwiseConv2D", "SeparableConv1D", "SeparableConv2D"),
        *(f"Conv{n}D" for n in (1, 2, 3)),
        *(f"Conv{n}DTranspose" for n in (1, 2, 3)),
        *(f"{kind}Pooling{n}D" for kind in ("Max", "Average") for n in (1, 2, 3)),
        *(f"Global{kind}Pooling{n}D" for kind in ("Max", "Average") for n in (1, 2, 3)),
        *(f"{kind}{n}D" for kind in ("ZeroPadding", "Cropping", "UpSampling") for n in (1, 2, 3)),
    )
)

_TENSORFLOWS = (
    *(tf.nn.elu, tf.nn.gelu, tf.nn.leaky_relu, tf.nn.log_softmax, tf.nn.relu, tf.nn.relu6, tf.nn.selu),
    *(tf.nn.sigmoid, tf.nn.silu, tf.nn.softmax, tf.nn.softplus, tf.nn.softsign, tf.nn.tanh, tf.identity),
)
"""Activations of TensorFlow that do not look at other rows."""


# Options by which known layers keep state, make masks or add losses.
_STATE_AND_LOSSES = ("stateful", "mask_zero", "activity_regularizer")


def find_obstacle(model: keras.Model, element_spec: Any) -> str | None:
    """Return why a step of a built and compiled model cannot be split, or None if it can.

    It can for layers of Keras's that treat each row by itself, by what they are and by their options.
    """
    if not keras_models.is_stock_method(model.train_step):
        return f"{type(model).__name__}.train_step is not Keras's own"
    if model.optimizer is None or not model.trainable_weights:
        return "there is nothing to train"
    if tf.distribute.get_strategy().num_replicas_in_sync > 1:
        return "replicas share each batch already"
    unknown = unknown_layer(model)
    if unknown is not None:
        return f"nothing is known of whether {unknown} treats each row of a batch by itself"
    if not all(isinstance(spec, tf.TensorSpec) for spec in keras.tree.flatten(element_spec)):
        return "its data is sparse or ragged"
    symbolic = [*(getattr(model, "inputs", None) or ()), *(getattr(model, "outputs", None) or ())]
    if not symbolic or not all(len(tensor.shape) > 1 and tensor.shape[0] is None for tensor in symbolic):
        return "its inputs and outputs have no axis for any number of rows"
    x = keras.tree.flatten(keras.utils.unpack_x_y_sample_weight(element_spec)[0])
    if len({spec.shape[:1].as_list()[0] for spec in x if spec.shape.rank}) != 1:
        return "its inputs differ in their number of rows"
    dropping = set(map(id, dropout_layers(model)))
    for layer in keras_models.flat_layers(model):
        if draws_random_numbers(layer) and id(layer) not in dropping:
            return f"the layer {layer.name!r} draws random numbers"
        option = next((option for option in _STATE_AND_LOSSES if getattr(layer, option, None)), None)
        if option is not None:
            return f"the layer {layer.name!r} has {option}, which is of the whole batch"
    return None


def draws_random_numbers(layer: keras.Layer) -> bool:
    """Whether a layer of Keras's draws random numbers in training."""
    rates = any(getattr(layer, name, 0) for name in ("rate", "dropout", "recurrent_dropout"))
    return rates and getattr(layer, "seed_generator", None) is not None


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
                activation is None or keras_models.is_stock_method(activation) or activation in _TENSORFLOWS
            ):
                return f"the activation of {kind.__name__} {layer.name!r}"
        for operation in getattr(layer, "operations", ()):
            if not isinstance(operation, keras.Layer):
                return f"the operation {operation.name!r}"
    return None


def rows_correspond(
    labels: tf.TensorShape, outputs: tf.TensorShape, weights: tf.TensorShape | None, *, classes: bool
) -> bool:
    """Whether Keras pairs each row of one output with its own label and weight, and does not broadcast.

    The labels' rank is known. With `classes`, a label is the index of an output along the last axis.
    """
    rank = outputs.rank
    others = [labels] if weights is None else [labels, weights]
    if rank < 2 or any(not shape.rank or shape[0] != outputs[0] for shape in others):
        return False
    one_less = classes or outputs[1:] == [1]
    paired = labels.rank == rank or (labels.rank == rank - 1 and one_less)
    if weights is None:
        return paired
    # A loss has no last axis; weights may have one of length one where only the rows' is left.
    column = rank == 2 and weights[1:] == [1]
    return paired and (weights.rank == rank - 1 or column)


_Gradient: TypeAlias = Any
"""A dense tensor, `tf.IndexedSlices`, or None for a variable that the loss does not depend on."""


@dataclasses.dataclass(frozen=True)
class _Part:
    tape: tf.GradientTape
    outputs: Outputs
    begin: Any
    end: Any
    rows: Any  # of the batch

    def rows_of(self, structure: Any) -> Any:
        """Return this part's rows of labels or weights; fails where they have fewer rows than the batch."""
        return rows_between(structure, self.begin, self.end)


@dataclasses.dataclass(eq=False)
class SplitStep:
    """`keras.Model.train_step` with the batch in parts, for a model without an obstacle (`find_obstacle`).

    The parts differ by one row at most. Batches of fewer rows than there are parts go to `whole`. Either way
    the step is put into what is `around`.
    """

    _model: keras.Model
    _parts: int
    _whole: StepFunction
    _around: Callable[[StepFunction], StepFunction]

    def __call__(self, batch: Batch) -> Logs:
        """Make one step."""
        whole, split = self._around(self._whole), self._around(self._in_parts)
        leaf = leaves_of(batch)[0]
        if leaf.shape[0] is not None:
            return split(batch) if leaf.shape[0] >= self._parts else whole(batch)
        enough = tf.shape(leaf)[0] >= self._parts
        logs: Logs = tf.cond(enough, lambda: split(batch), lambda: whole(batch))
        return logs

    def _in_parts(self, batch: Batch) -> Logs:
        model = self._model
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        parts = self._forward(x)
        outputs = [
            _concatenate(tensors, leaves_of(x)[0])
            for tensors in zip(*(part.outputs.tensors for part in parts), strict=True)
        ]
        y_pred = parts[0].outputs.of(outputs)
        if self._rows_are_apart(y, y_pred, sample_weight):
            loss, gradients = self._apart(parts, y, sample_weight)
        else:
            loss, gradients = self._together(parts, outputs, x, y, sample_weight)
        keras_replicas.track_loss(model, x, loss)
        weights = model.trainable_weights
        sums = [add_gradients(addends) for addends in zip(*gradients, strict=True)]
        model.optimizer.apply_gradients(zip(sums, weights, strict=True))
        return dict(model.compute_metrics(x, y, y_pred, sample_weight=sample_weight))

    def _forward(self, x: Any) -> list[_Part]:
        parts = []
        masks: Masks = {}
        rows = row_count(leaves_of(x)[0])
        bounds = [rows * index // self._parts for index in range(self._parts + 1)]
        with contextlib.ExitStack() as patches:
            part = whole_batch_dropout(self._model, patches)
            for begin, end in itertools.pairwise(bounds):
                with part(rows, begin, end, masks), tf.GradientTape() as tape:
                    output = keras_training.forward(self._model, rows_between(x, begin, end))
                parts.append(_Part(tape, Outputs(output), begin, end, rows))
        return parts

    def _together(
        self, parts: Sequence[_Part], outputs: Sequence[tf.Tensor], x: Any, y: Any, sample_weight: Any
    ) -> tuple[Any, list[list[_Gradient]]]:
        """Return the loss and the addends of its gradient, each of which needs the outputs of all parts."""
        model, weights = self._model, list(self._model.trainable_weights)
        with tf.GradientTape() as tape:
            tape.watch([tensor for tensor in outputs if tensor.dtype.is_floating])
            y_pred = parts[0].outputs.of(outputs)
            loss = keras_replicas.compute_loss(model, x, y, y_pred, sample_weight)
            scaled = model.optimizer.scale_loss(loss)
        by_output, direct = tape.gradient(scaled, (list(outputs), weights))
        # A loss that gathers rows has a gradient of those rows only, which cannot be sliced.
        dense = [None if gradient is None else tf.convert_to_tensor(gradient) for gradient in by_output]
        gradients = [direct]
        for part in parts:
            pairs = zip(part.outputs.tensors, dense, strict=True)
            targets = [(tensor, g[part.begin : part.end]) for tensor, g in pairs if g is not None]
            tensors, seeds = [tensor for tensor, _ in targets], [seed for _, seed in targets]
            gradients.append(part.tape.gradient(tensors, weights, output_gradients=seeds))
        return loss, gradients

    def _apart(
        self, parts: Sequence[_Part], y: tf.Tensor, sample_weight: tf.Tensor | None
    ) -> tuple[Any, list[list[_Gradient]]]:
        """Return the same for an average of rows, where each addend needs the outputs of one part only."""
        optimizer, weights = self._model.optimizer, list(self._model.trainable_weights)
        compiled_loss, _ = keras_models.compiled_parts(self._model)
        shares, gradients = [], []
        for part in parts:
            with part.tape:
                loss = compiled_loss(part.rows_of(y), part.outputs.structure, part.rows_of(sample_weight))
                shares.append(loss * tf.cast((part.end - part.begin) / part.rows, loss.dtype))
                scaled = optimizer.scale_loss(shares[-1])
            gradients.append(part.tape.gradient(scaled, weights))
        with tf.GradientTape() as tape:
            additional = keras_replicas.additional_losses(self._model)
            scaled = [optimizer.scale_loss(loss) for loss in additional]
        if additional:
            gradients.append(tape.gradient(scaled, weights))
        return keras.ops.sum([*shares, *additional]), gradients

    def _rows_are_apart(self, y: Any, y_pred: Any, sample_weight: Any) -> bool:
        """Whether the batch's loss is the average of the parts' losses, weighted by rows."""
        # TensorFlow composes a deterministic loss of so many operations that its trace for each part is slow.
        if keras_training.is_deterministic() or not keras_models.is_stock_method(self._model.compute_loss):
            return False
        name = keras_replicas.row_loss(self._model)
        if name is None:
            return False
        tensors = (y, y_pred) if sample_weight is None else (y, y_pred, sample_weight)
        if not all(isinstance(tensor, tf.Tensor) and tensor.shape.rank for tensor in tensors):
            return False
        shapes = [None if tensor is None else tensor.shape for tensor in (y, y_pred, sample_weight)]
        return rows_correspond(*shapes, classes=name == "sparse_categorical_crossentropy")


def _concatenate(parts: Sequence[tf.Tensor], like: tf.Tensor) -> tf.Tensor:
    whole = tf.concat(parts, axis=0)
    whole.set_shape([like.shape[0], *whole.shape[1:]])
    return whole
