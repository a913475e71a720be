"""D: going through batches in memory inside a compiled loop."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

import tensorflow as tf

__all__ = ["BatchStep", "Fold"]

BatchStep = Callable[[Any], list[tf.Tensor]]
"""What is done with one batch, inside a compiled loop; returns the tensors that the loop carries."""


class Fold(abc.ABC):
    """Goes through batches in memory inside a compiled function. Holds no data; compares by what it does."""

    def over(
        self,
        held: Any,
        first: tf.Tensor,
        stop: tf.Tensor,
        start: list[tf.Tensor],
        step: BatchStep,
        shapes: list[tf.TensorShape],
    ) -> list[tf.Tensor]:
        """Does `step` with the batches from `first` to before `stop`, and returns the last tensors."""
        _, carried = tf.while_loop(
            lambda index, _: index < stop,
            lambda index, _: (index + 1, step(self.batch(held, index))),
            (first, start),
            shape_invariants=(tf.TensorShape([]), shapes),
            parallel_iterations=1,
        )
        return list(carried)

    @abc.abstractmethod
    def batch(self, held: Any, index: Any) -> Any:
        """Returns one batch."""
