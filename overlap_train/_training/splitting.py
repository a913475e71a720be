"""One training step whose batch is divided into parts that run side by side on the cores of a CPU.

The parts' forward and backward passes are independent branches of one graph, so TensorFlow's inter-op
threads run them at the same time. Between them stands the loss, computed for the whole batch by the model's
own `compute_loss`:

    y_k = f(x_k; w) for each part k,    L = compute_loss(y, (y_1, y_2, ...)),
    dL/dw = sum_k (dy_k/dw)^T dL/dy_k + what the loss has from the weights directly (regularisers).

This is the gradient of the whole batch, with rounding in another order, for any loss, reduction, sample
weights and sizes of the parts; loss, metrics, loss scaling and clipping are computed once, as Keras does.
It needs each row of the outputs to depend on its own row of the inputs only; `obstacles.py` says where that
does not hold or cannot be known.

All parts wait there for the last of them, and so does a core with nothing left to do. Where the loss is
known to average the rows of one output, n_k of n in part k, nothing has to wait:

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

from overlap_train._keras import losses as keras_losses
from overlap_train._keras import methods as keras_methods
from overlap_train._keras import models as keras_models
from overlap_train._keras import training as keras_training
from overlap_train._training.dropout import Masks, whole_batch_dropout
from overlap_train._training.obstacles import rows_correspond
from overlap_train._training.outputs import Outputs
from overlap_train._training.rows import leaves_of, row_count
from overlap_train._training.step import Batch, Logs, StepFunction

__all__ = ["SplitStep"]

_Gradient: TypeAlias = Any
"""A dense tensor, `tf.IndexedSlices`, or None for a variable that the loss does not depend on."""


@dataclasses.dataclass(frozen=True)
class _Part:
    tape: tf.GradientTape
    outputs: Outputs
    begin: Any
    end: Any
    rows: Any  # of the batch

    def labels(self, whole: tf.Tensor | None) -> tf.Tensor | None:
        """This part's rows of labels or weights; fails where there are fewer rows than the batch has."""
        if whole is None:
            return None
        return _rows_of(whole, self.begin, self.end)


class SplitStep:
    """`keras.Model.train_step` with the batch in parts; `find_obstacle` must have found nothing.

    The parts differ by one row at most. Batches of fewer rows than there are parts go to `whole`. Called
    while tracing, on the training thread.
    """

    def __init__(
        self,
        model: keras.Model,
        parts: int,
        whole: StepFunction,
        around: Callable[[StepFunction], StepFunction] = lambda step: step,
    ) -> None:
        self._model = model
        self._parts = parts
        self._whole = around(whole)
        self._split = around(self._in_parts)

    def __call__(self, batch: Batch) -> Logs:
        """Make one step."""
        leaf = leaves_of(batch)[0]
        if leaf.shape[0] is not None:
            return self._split(batch) if leaf.shape[0] >= self._parts else self._whole(batch)
        enough = tf.shape(leaf)[0] >= self._parts
        logs: Logs = tf.cond(enough, lambda: self._split(batch), lambda: self._whole(batch))
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
        keras_losses.track_loss(model, x, loss)
        weights = model.trainable_weights
        summed = [_add(addends) for addends in zip(*gradients, strict=True)]
        model.optimizer.apply_gradients(zip(summed, weights, strict=True))
        return dict(model.compute_metrics(x, y, y_pred, sample_weight=sample_weight))

    def _forward(self, x: Any) -> list[_Part]:
        parts = []
        masks: Masks = {}
        bounds = self._bounds(leaves_of(x)[0])
        with contextlib.ExitStack() as patches:
            begin_part = whole_batch_dropout(self._model, patches)
            for begin, end in itertools.pairwise(bounds):
                begin_part(bounds[-1], begin, end, masks)
                with tf.GradientTape() as tape:
                    output = keras_training.forward(self._model, _rows(x, begin, end))
                parts.append(_Part(tape, Outputs(output), begin, end, bounds[-1]))
        return parts

    def _together(
        self, parts: Sequence[_Part], outputs: Sequence[tf.Tensor], x: Any, y: Any, sample_weight: Any
    ) -> tuple[Any, list[list[_Gradient]]]:
        """The loss, and the addends of its gradient, of which all need all parts' outputs."""
        model, weights = self._model, list(self._model.trainable_weights)
        with tf.GradientTape() as tape:
            tape.watch([tensor for tensor in outputs if tensor.dtype.is_floating])
            y_pred = parts[0].outputs.of(outputs)
            loss = keras_losses.compute_loss(model, x, y, y_pred, sample_weight)
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
        """The same for an average of rows: each addend is one part's own, or the regularisers'."""
        optimizer, weights = self._model.optimizer, list(self._model.trainable_weights)
        compiled_loss, _ = keras_models.compiled_parts(self._model)
        shares, gradients = [], []
        for part in parts:
            with part.tape:
                loss = compiled_loss(part.labels(y), part.outputs.structure, part.labels(sample_weight))
                shares.append(loss * tf.cast((part.end - part.begin) / part.rows, loss.dtype))
                scaled = optimizer.scale_loss(shares[-1])
            gradients.append(part.tape.gradient(scaled, weights))
        with tf.GradientTape() as tape:
            additional = keras_losses.additional_losses(self._model)
            scaled = [optimizer.scale_loss(loss) for loss in additional]
        if additional:
            gradients.append(tape.gradient(scaled, weights))
        return keras.ops.sum([*shares, *additional]), gradients

    def _rows_are_apart(self, y: Any, y_pred: Any, sample_weight: Any) -> bool:
        """Whether the batch's loss is the average of the parts', by rows."""
        name = keras_losses.row_loss(self._model)
        if name is None or not keras_methods.is_stock_method(self._model.compute_loss):
            return False
        given = (y, y_pred) if sample_weight is None else (y, y_pred, sample_weight)
        if not all(isinstance(tensor, tf.Tensor) and tensor.shape.rank for tensor in given):
            return False
        shapes = [None if tensor is None else tensor.shape for tensor in (y, y_pred, sample_weight)]
        return rows_correspond(*shapes, classes=name == "sparse_categorical_crossentropy")

    def _bounds(self, leaf: tf.Tensor) -> list[Any]:
        rows = row_count(leaf)
        return [rows * index // self._parts for index in range(self._parts + 1)]


def _rows(structure: Any, begin: Any, end: Any) -> Any:
    return keras.tree.map_structure(
        lambda leaf: None if leaf is None else _rows_of(leaf, begin, end), structure
    )


def _rows_of(whole: Any, begin: Any, end: Any) -> Any:
    """Some rows; fails where there are fewer, rather than to leave a part with too few or none."""
    if not isinstance(whole, tf.Tensor):
        return whole[begin:end]
    others = whole.shape.rank - 1
    rows = tf.slice(whole, [begin, *[0] * others], [end - begin, *[-1] * others])
    rows.set_shape(whole[begin:end].shape)
    return rows


def _concatenate(parts: Sequence[tf.Tensor], like: tf.Tensor) -> tf.Tensor:
    whole = tf.concat(parts, axis=0)
    whole.set_shape([like.shape[0], *whole.shape[1:]])
    return whole


def _add(gradients: Sequence[_Gradient]) -> _Gradient:
    """Add gradients of one variable; sparse ones stay sparse, as the optimizer would get them."""
    present = [gradient for gradient in gradients if gradient is not None]
    if not present:
        return None
    if all(isinstance(gradient, tf.IndexedSlices) for gradient in present):
        values = tf.concat([gradient.values for gradient in present], axis=0)
        indices = tf.concat([gradient.indices for gradient in present], axis=0)
        return tf.IndexedSlices(values, indices, present[0].dense_shape)
    return tf.add_n([tf.convert_to_tensor(gradient) for gradient in present])
