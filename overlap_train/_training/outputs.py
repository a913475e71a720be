"""What a model made of some rows of a batch, put together from parts as its loss would find it in one piece.

Keras does not compute a crossentropy from probabilities but from the logits under them, which it finds at the
output itself or as the input of the operation that made it. What was put together from parts has neither, and
probabilities that were rounded to 0 or 1 have no gradient. So logits are put together too, and so are masks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from overlap_train._keras import replicas as keras_replicas

__all__ = ["Outputs"]

_ACTIVATIONS: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {"Softmax": tf.nn.softmax, "Sigmoid": tf.sigmoid}
"""What makes probabilities, by the type of the operation under which Keras looks for the logits."""


class Outputs:
    """The outputs of a model for some rows, nested, rows along axis 0. Made and used while tracing."""

    def __init__(self, structure: Any) -> None:
        self.structure = structure
        leaves = [leaf for leaf in keras.tree.flatten(structure) if leaf is not None]
        # All that a loss may look at: outputs, logits, masks.
        self.tensors: list[tf.Tensor] = [tensor for leaf in leaves for tensor in _read_by_losses(leaf)]

    def of(self, tensors: Sequence[tf.Tensor]) -> Any:
        """Return the outputs of other rows from what `tensors` would be for them, nested as these.

        Where gradients by the tensors are wanted, this is called under the tape that watches them.
        """
        rest = iter(tensors)

        def made(leaf: Any) -> Any:
            if leaf is None:
                return None
            activation, logits, mask = (
                _activation(leaf),
                keras_replicas.logits_of(leaf),
                keras_replicas.mask_of(leaf),
            )
            # A tensor of its own, since what is set on it must not be seen elsewhere.
            whole = tf.identity(next(rest)) if activation is None else activation(next(rest))
            if logits is not None:
                keras_replicas.set_logits(whole, next(rest))
            if mask is not None:
                keras_replicas.set_mask(whole, next(rest))
            return whole

        return keras.tree.map_structure(made, self.structure)


def _read_by_losses(leaf: tf.Tensor) -> list[tf.Tensor]:
    value = leaf if _activation(leaf) is None else leaf.op.inputs[0]
    return [
        value,
        *(t for t in (keras_replicas.logits_of(leaf), keras_replicas.mask_of(leaf)) if t is not None),
    ]


def _activation(leaf: tf.Tensor) -> Callable[[tf.Tensor], tf.Tensor] | None:
    """What to make the output with again, where Keras tells by its operation that it has logits."""
    operation = getattr(leaf, "op", None)
    if operation is None or keras_replicas.logits_of(leaf) is not None:
        return None
    return _ACTIVATIONS.get(operation.type)
