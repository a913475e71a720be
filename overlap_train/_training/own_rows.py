"""Hosts that each bring rows of their own: what they tell each other of these in every step.

A step's batch is what all hosts bring, in the order of the hosts. Each takes its own inputs through the
model; how many rows there are, targets and sample weights go to all of them, beside the outputs. A host
whose data has ended brings none while others go on.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from overlap_train._keras import models as keras_models
from overlap_train._training.parts import Share, leaves_of, row_count
from overlap_train._training.step import Batch
from overlap_train._training.strategy import Replicas, shares_of


class OwnShare(Share):
    """A replica's rows of those that its host brings. Made in the replica's context."""

    def __init__(self, x: Any, replicas: Replicas, number: int) -> None:
        own = shares_of(row_count(leaves_of(x)[0]), len(replicas.devices))
        self._first, size = own[number - replicas.first]
        alone = tf.one_hot(number, replicas.count, dtype=tf.int32) * size
        sizes = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, alone)
        super().__init__(x, tf.reduce_sum(sizes), tf.cumsum(sizes, exclusive=True)[number], size)

    def rows_of(self, structure: Any) -> Any:
        """Return this replica's rows of what its host brings; one of zeros where there are none."""

        def rows(leaf: tf.Tensor) -> tf.Tensor:
            count, rest = tf.shape(leaf)[0], tf.shape(leaf)[1:]
            some = tf.cond(count > 0, lambda: leaf, lambda: tf.zeros(tf.concat([[1], rest], 0), leaf.dtype))
            some.set_shape([None, *leaf.shape[1:]])
            begin = tf.minimum(self._first, tf.shape(some)[0] - 1)
            return some[begin : begin + tf.maximum(self.size, 1)]

        return keras.tree.map_structure(lambda leaf: None if leaf is None else rows(leaf), structure)


def read_by_all(model: keras.Model, batch: Batch) -> tuple[Any, Any, Any]:
    """Return what the loss and the metrics read of a batch besides outputs, None in the place of the rest."""
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
    stock = keras_models.is_stock_method(model.compute_loss)
    return None if stock and keras_models.is_stock_method(model.compute_metrics) else x, y, sample_weight
