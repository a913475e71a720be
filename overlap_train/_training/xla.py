"""Loops whose steps XLA compiles, and what speaks against them."""

from __future__ import annotations

import keras
import tensorflow as tf

from overlap_train._data.array_feed import ArrayFeed
from overlap_train._data.cursor import Cursor
from overlap_train._data.feed import Feed
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


def find_xla_obstacle(model: keras.Model, feed: Feed) -> str | None:
    """Say why the loop over a model's steps is not to be compiled by XLA unasked, or return None."""
    if not isinstance(feed, ArrayFeed):
        return "XLA cannot contain an iterator"
    if feed.num_samples < feed.batch_size:
        return "there is no full batch"
    if _sizes_matter(model, feed):
        return "the losses of several outputs are averaged otherwise where a batch has a static size"
    unknown = unknown_layer(model, also=("BatchNormalization",))
    if unknown is not None:
        return f"nothing is known of {unknown}"
    for layer in keras_models.flat_layers(model):
        if "Conv" in type(layer).__name__:
            return "XLA's convolutions on a CPU are several times slower"
        if draws_random_numbers(layer):
            return f"XLA draws other random numbers for {layer.name!r}"
    if _may_exceed_tables(model, feed):
        return "XLA takes another row or NaN for an index out of range, which is an error"
    return None


def _may_exceed_tables(model: keras.Model, feed: ArrayFeed) -> bool:
    """Whether an input may be no row of an embedding, or a label no class."""
    x, y, _ = keras.utils.unpack_x_y_sample_weight(feed.tensors)
    layers = keras_models.flat_layers(model)
    tables = [layer.input_dim for layer in layers if isinstance(layer, keras.layers.Embedding)]
    limits = [(indices, min(tables)) for indices in keras.tree.flatten(x) if tables]
    for labels, outputs in zip(keras.tree.flatten(y), model.outputs, strict=False):
        if labels is not None and labels.shape[1:] != outputs.shape[1:] and outputs.shape[-1] != 1:
            limits.append((labels, outputs.shape[-1] or 0))
    if feed.preprocess is not None:
        return bool(limits)
    return not all(indices.numpy().min() >= 0 and indices.numpy().max() < end for indices, end in limits)


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


def _sizes_matter(model: keras.Model, feed: ArrayFeed) -> bool:
    """Whether Keras's numbers are those of batches whose size is unknown while tracing."""
    return bool(feed.num_samples % feed.batch_size) and keras_metrics.tracks_each_loss(model)
