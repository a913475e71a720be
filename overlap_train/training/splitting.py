"""One training step whose batch is divided into parts that run side by side on the cores of a CPU.

The parts' forward and backward passes are independent branches of one graph, so TensorFlow's inter-op
threads run them at the same time. Between them stands the loss, computed for the whole batch by the model's
own `compute_loss`:

    y_k = f(x_k; w) for each part k,    L = compute_loss(y, (y_1, y_2, ...)),
    dL/dw = sum_k (dy_k/dw)^T dL/dy_k + what the loss has from the weights directly (regularisers).

This is the gradient of the whole batch, with rounding in another order, for any loss, reduction, sample
weights and sizes of the parts; loss, metrics, loss scaling and clipping are computed as Keras does, once.
It needs each row of the outputs to depend on its own row of the inputs only; `obstacles.py` says where that
does not hold or cannot be known.

All parts would wait there for the last of them, and a core with nothing left to do too. Where the loss is
known to average the rows, n_k of n in a part, each part takes the gradient of n_k/n L_k, L_k its own loss,
and goes on at once; L itself, for the logs, is in nobody's way.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from overlap_train import _keras
from overlap_train.training.dropout import Masks, whole_batch_dropout
from overlap_train.training.step import Batch, Logs, StepFunction

__all__ = ["SplitStep"]

_Gradient: TypeAlias = Any
"""A dense tensor, `tf.IndexedSlices`, or None for a variable that the loss does not depend on."""


class SplitStep:
    """`keras.Model.train_step` with the batch in parts; `obstacles.find_obstacle` must have found nothing.

    Called while tracing, on the training thread.

    Args:
        model: built and compiled.
        parts: into how many parts a batch is divided; their sizes differ by one row at most.
        whole: the step for batches of fewer rows than there are parts.
        around: what puts a step where the model's variables may be updated.
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
        """Makes one step."""
        leaf = _leaves(batch)[0]
        if leaf.shape[0] is not None:
            return self._split(batch) if leaf.shape[0] >= self._parts else self._whole(batch)
        enough = tf.shape(leaf)[0] >= self._parts
        logs: Logs = tf.cond(enough, lambda: self._split(batch), lambda: self._whole(batch))
        return logs

    def _in_parts(self, batch: Batch) -> Logs:
        model = self._model
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        bounds = self._bounds(_leaves(x)[0])
        tapes, outputs = self._forward(x, bounds)
        y_pred = keras.tree.map_structure(lambda *parts: _concatenate(parts, _leaves(x)[0]), *outputs)

        weights = model.trainable_weights
        with tf.GradientTape() as tape:
            predictions = _leaves(y_pred)
            tape.watch([leaf for leaf in predictions if leaf.dtype.is_floating])
            loss = _keras.compute_and_track_loss(model, x, y, y_pred, sample_weight)
            scaled = model.optimizer.scale_loss(loss)
        by_output, direct = tape.gradient(scaled, (predictions, list(weights)))

        apart = self._rows_are_apart(y, y_pred, sample_weight)
        gradients = [direct]
        for part_tape, output, begin, end in zip(tapes, outputs, bounds, bounds[1:], strict=False):
            if apart:
                with part_tape:
                    share = self._share_of_loss(_rows((y, sample_weight), begin, end), output, bounds[-1])
                gradients.append(part_tape.gradient(share, list(weights)))
                continue
            pairs = zip(_leaves(output), by_output, strict=True)
            targets = [(leaf, gradient[begin:end]) for leaf, gradient in pairs if gradient is not None]
            leaves, seeds = [leaf for leaf, _ in targets], [seed for _, seed in targets]
            gradients.append(part_tape.gradient(leaves, list(weights), output_gradients=seeds))
        summed = [_add(parts) for parts in zip(*gradients, strict=True)]
        model.optimizer.apply_gradients(zip(summed, weights, strict=True))
        return dict(model.compute_metrics(x, y, y_pred, sample_weight=sample_weight))

    def _rows_are_apart(self, y: Any, y_pred: Any, sample_weight: Any) -> bool:
        """Whether the batch's loss is the parts' average, by rows, and each part's labels are at hand."""
        # Losses reduce the last axis. Where outputs have but one, that is the rows'.
        outputs = all(leaf.shape.rank is not None and leaf.shape.rank > 1 for leaf in _leaves(y_pred))
        given = all(isinstance(leaf, tf.Tensor) and leaf.shape.rank for leaf in _leaves((y, sample_weight)))
        stock = _keras.is_stock_method(self._model.compute_loss)
        return stock and outputs and given and _keras.loss_averages_rows(self._model)

    def _share_of_loss(self, given: tuple[Any, Any], output: Any, rows: Any) -> tf.Tensor:
        """What one part contributes to the scaled loss of a batch of `rows`."""
        y, sample_weight = given
        compiled_loss, _ = _keras.compiled_parts(self._model)
        loss = compiled_loss(y, output, sample_weight)
        share = tf.cast(tf.shape(_leaves(output)[0])[0] / rows, loss.dtype)
        return self._model.optimizer.scale_loss(loss * share)

    def _forward(self, x: Any, bounds: Sequence[Any]) -> tuple[list[tf.GradientTape], list[Any]]:
        tapes, outputs = [], []
        masks: Masks = {}
        with whole_batch_dropout(self._model) as begin_part:
            for begin, end in itertools.pairwise(bounds):
                begin_part(bounds[-1], begin, end, masks)
                with tf.GradientTape() as tape:
                    outputs.append(_keras.forward(self._model, _rows(x, begin, end)))
                tapes.append(tape)
        return tapes, outputs

    def _bounds(self, leaf: tf.Tensor) -> list[Any]:
        rows = leaf.shape[0] if leaf.shape[0] is not None else tf.shape(leaf)[0]
        return [rows * index // self._parts for index in range(self._parts + 1)]


def _leaves(structure: Any) -> list[tf.Tensor]:
    return [leaf for leaf in keras.tree.flatten(structure) if leaf is not None]


def _rows(structure: Any, begin: Any, end: Any) -> Any:
    return keras.tree.map_structure(lambda leaf: None if leaf is None else leaf[begin:end], structure)


def _concatenate(parts: Sequence[tf.Tensor], like: tf.Tensor) -> tf.Tensor:
    whole = tf.concat(parts, axis=0)
    whole.set_shape([like.shape[0], *whole.shape[1:]])
    return whole


def _add(gradients: Sequence[_Gradient]) -> _Gradient:
    """Adds gradients of one variable; sparse ones stay sparse, as the optimizer would get them."""
    present = [gradient for gradient in gradients if gradient is not None]
    if not present:
        return None
    if all(isinstance(gradient, tf.IndexedSlices) for gradient in present):
        values = tf.concat([gradient.values for gradient in present], axis=0)
        indices = tf.concat([gradient.indices for gradient in present], axis=0)
        return tf.IndexedSlices(values, indices, present[0].dense_shape)
    return tf.add_n([tf.convert_to_tensor(gradient) for gradient in present])
