"""Loops whose steps XLA compiles, and what speaks against them."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from overlap_train._data.array_feed import ArrayFeed
from overlap_train._data.cursor import Cursor
from overlap_train._data.feed import Feed
from overlap_train._data.validation_data import ArrayBatches
from overlap_train._inspection.graph import is_custom, nested_operations
from overlap_train._keras import metrics as keras_metrics
from overlap_train._keras import models as keras_models
from overlap_train._training.loops import ArrayLoop, Loop, StepsDone, arrays_of
from overlap_train._training.splitting import draws_random_numbers, unknown_layer
from overlap_train._training.step import Step, StepFunction


class CompiledArrayLoop(ArrayLoop):
    """A loop over arrays that XLA compiles for the full batches, as it needs to know their size.

    A smaller last one goes through an ordinary loop with `last_step`. With `may_refuse` all do, where XLA
    cannot compile the step.
    """

    def __init__(self, feed: ArrayFeed, step: Step, last_step: Step, *, may_refuse: bool) -> None:
        super().__init__(feed, step, compiled=True)
        self._last_step = last_step
        self._last: ArrayLoop | None = None
        self._may_refuse = may_refuse  # until the first call has succeeded
        self._has_refused = False

    def run(self, cursor: Cursor, max_steps: int) -> StepsDone:
        feed, result = arrays_of(cursor), StepsDone(0)
        full_batches = min(max_steps, feed.num_samples // feed.batch_size - cursor.seen)
        if full_batches > 0 and not self._has_refused:
            try:
                result = super().run(cursor, full_batches)
                self._may_refuse = False
            except tf.errors.OpError:
                if not self._may_refuse:
                    raise
                # XLA could not compile it, so no step was made; an error of the data comes again without XLA.
                self._has_refused = True
        if result.halted or result.steps == max_steps:
            return result
        if self._last is None:
            self._last = ArrayLoop(feed, self._last_step)
        rest = self._last.run(cursor, max_steps - result.steps)
        return StepsDone(result.steps + rest.steps, halted=rest.halted, logs=rest.logs)


# What Keras does to labels and indices before it looks them up. A negative index counts from the end.
_SAME_INDEX = ("Cast", "Identity", "Less", "NotEqual", "Reshape", "SelectV2", "Squeeze")


def may_compile(model: keras.Model, data: ArrayFeed | ArrayBatches, graph: Any) -> bool:
    """Whether XLA may compile the loop over steps unasked: harmless data gives the same numbers and errors.

    `graph` is that of the traced step. See `is_harmless`.
    """
    if data.preparation is not None or data.num_samples < data.batch_size or _sizes_matter(model, data):
        return False
    # Of custom code XLA leaves out assertions, clamps indices and draws other random numbers.
    if unknown_layer(model, also=("BatchNormalization",)) is not None:
        return False
    if any(map(is_custom, graph.get_operations())):
        return False
    if any(kind.startswith(("CheckNumerics", "Debug")) for kind, _, _ in nested_operations(graph)):
        return False  # it leaves out what `tf.debugging` checks
    for layer in keras_models.flat_layers(model):
        if "Conv" in type(layer).__name__:
            return False  # its convolutions on a CPU are several times slower
        if layer.compute_dtype in ("bfloat16", "float16") or draws_random_numbers(layer):
            return False  # it rounds otherwise, and draws other numbers
    return True


def is_harmless(tensors: Any, graph: Any) -> bool:
    """Whether data, all rows of it, is finite and its indices in range: XLA would notice neither."""
    x = keras.tree.flatten(keras.utils.unpack_x_y_sample_weight(tensors)[0])
    # Its activations keep NaN, which TensorFlow's may not.
    is_finite = all(tf.reduce_all(tf.math.is_finite(leaf)) for leaf in x if leaf.dtype.is_floating)
    return is_finite and not _may_exceed_tables(tensors, graph)


def _may_exceed_tables(tensors: Any, graph: Any) -> bool:
    """Whether an index may be no row of an embedding, or a label no class: an error without XLA."""
    data = dict(zip((spec.name for spec in graph.inputs), tf.nest.flatten(tensors), strict=False))
    for operation in graph.get_operations():
        if operation.type not in ("GatherV2", "InTopKV2", "SparseSoftmaxCrossEntropyWithLogits"):
            continue
        table, index = operation.inputs[:2]
        while index.op.type in _SAME_INDEX:
            index = index.op.inputs[0]
        axis = 0 if operation.type == "GatherV2" else -1
        while table.shape[axis] is None and table.op.type == "Reshape":  # to rows of classes, for the loss
            table = table.op.inputs[0]
        end = table.shape[axis] or 0
        values = data[index.name].numpy() if index.name in data else None
        in_range = values is not None and (not values.size or (values.min() >= 0 and values.max() < end))
        if table.dtype.is_floating and not in_range:  # from integers, such as shapes, no data chooses
            return True
    return False


def compiled_loop(
    model: keras.Model, feed: Feed, step: Step, function: StepFunction, *, by_request: bool
) -> Loop | None:
    """Return a loop that XLA compiles as one, where batches have the same size, or None.

    Otherwise the step is compiled for whatever size of a batch comes.
    """
    if not isinstance(feed, ArrayFeed) or _sizes_matter(model, feed):
        return None
    plain = step.using(function)
    # Where XLA is asked for, its random numbers are those of every batch.
    single = step.using(function, jit_compile=True) if by_request else plain
    return CompiledArrayLoop(feed, plain, single, may_refuse=not by_request)


def _sizes_matter(model: keras.Model, data: ArrayFeed | ArrayBatches) -> bool:
    """Whether Keras's numbers are those of batches whose size is unknown while tracing.

    The losses of several outputs are averaged otherwise where it is known.
    """
    return bool(data.num_samples % data.batch_size) and keras_metrics.tracks_each_loss(model)
