"""A part of a batch: its rows, the dropout of the whole batch, and outputs as the loss expects them.

Dropout for a part uses the random numbers that the whole batch would get.

Keras does not compute a crossentropy from probabilities but from the logits under them, which it finds at the
output itself or as the input of the operation that made it. A concatenation of parts has neither, and
probabilities that were rounded to 0 or 1 have no gradient. So logits and masks are concatenated, too.

Called while a step is traced.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from overlap_train._keras import models as keras_models
from overlap_train._keras import replicas as keras_replicas


def leaves_of(structure: Any) -> list[tf.Tensor]:
    """Return the tensors of a nested structure without the Nones that stand for missing ones."""
    return [leaf for leaf in keras.tree.flatten(structure) if leaf is not None]


def row_count(leaf: tf.Tensor) -> Any:
    """Return how many rows a tensor has: an int where its shape tells, otherwise a scalar tensor."""
    return leaf.shape[0] if leaf.shape[0] is not None else tf.shape(leaf)[0]


def named_leaves(structure: Any) -> dict[str, tf.Tensor]:
    """Return the tensors of a nested structure by their path in it."""
    paths = keras.tree.flatten_with_path(structure)
    return {"/".join(map(str, path)): leaf for path, leaf in paths if leaf is not None}


def require_rows(tensors: Mapping[str, tf.Tensor], rows: Any, what: str) -> list[tf.Operation]:
    """Return checks that each tensor has `rows` rows; raise ValueError where a shape says that it has not."""
    checks = []
    for name, tensor in tensors.items():
        message = (
            f"{what}{name and f' ({name!r})'} is of shape {tensor.shape}, without a row for each row of the "
            "inputs; a batch cannot be shared or split then. Train on one device without batch_splits, or "
            "override train_step"
        )
        found = row_count(tensor) if tensor.shape.rank != 0 else None
        is_known = isinstance(found, int) and isinstance(rows, int)
        if found is None or (is_known and found != rows):
            raise ValueError(message)
        if not is_known:
            checks.append(tf.debugging.assert_equal(found, rows, message))
    return [check for check in checks if check]  # none where no graph is traced


def rows_between(structure: Any, begin: Any, end: Any) -> Any:
    """Return a range of rows of each tensor; fails where one has fewer, rather than to return fewer."""

    def rows(leaf: Any) -> Any:
        if not isinstance(leaf, tf.Tensor) or leaf.shape.rank is None:
            return None if leaf is None else leaf[begin:end]
        others = leaf.shape.rank - 1
        result = tf.slice(leaf, [begin, *[0] * others], [end - begin, *[-1] * others])
        result.set_shape(leaf[begin:end].shape)
        return result

    return keras.tree.map_structure(rows, structure)


def add_gradients(gradients: Sequence[Any]) -> Any:
    """Add gradients of one variable, of which some may be None.

    Sparse ones stay sparse and stand one behind the other, as the optimizer would get them for a whole batch.
    """
    addends = [gradient for gradient in gradients if gradient is not None]
    if not addends:
        return None
    if not all(isinstance(gradient, tf.IndexedSlices) for gradient in addends):
        return tf.add_n([tf.convert_to_tensor(gradient) for gradient in addends])
    values = tf.concat([gradient.values for gradient in addends], axis=0)
    indices = tf.concat([gradient.indices for gradient in addends], axis=0)
    return tf.IndexedSlices(values, indices, addends[0].dense_shape)


def number_type(dtype: tf.DType) -> tf.DType:
    """Return the type in which values of a type are added over hosts; adding zeros changes none of them."""
    return dtype if dtype.is_floating or dtype.is_complex else tf.float64


class Share:
    """A replica's rows of the inputs; at least one, because not every model takes none."""

    def __init__(self, x: Any, rows: Any, begin: Any, size: Any) -> None:
        self.rows, self.begin, self.size = rows, begin, size
        least, most = (min, max) if isinstance(rows, int) else (tf.minimum, tf.maximum)
        self.start = least(begin, rows - 1)
        self.stop = most(begin + size, self.start + 1)
        self.x = self.rows_of(x)

    def rows_of(self, structure: Any) -> Any:
        """Return this share's rows of a batch."""
        return rows_between(structure, self.start, self.stop)

    def padded(self, output: tf.Tensor, most_rows: Any) -> tf.Tensor:
        """Return this share's rows of an output at their place among zeros, `most_rows` in all."""
        around = [[self.begin, most_rows - self.begin - self.size]] + [[0, 0]] * (output.shape.rank - 1)
        padded = tf.pad(output[: self.size], around)
        padded.set_shape([most_rows if isinstance(most_rows, int) else None, *output.shape[1:]])
        return padded

    def seed(self, gradient: Any) -> tf.Tensor:
        """Return this share's rows of a gradient by an output, zero for the row that counts nothing."""
        rows = tf.convert_to_tensor(gradient)[self.start : self.stop]
        if isinstance(self.size, int) and self.size > 0:
            return rows
        return tf.where(self.size > 0, rows, tf.zeros_like(rows))

    def counts(self, added: tf.Tensor) -> tf.Tensor:
        """Return what has been added for this share's rows, in a type for sums over hosts."""
        dtype = number_type(added.dtype)
        return tf.cast(self.size > 0, dtype) * tf.cast(added, dtype)

    def weight(self, dtype: tf.DType) -> tf.Tensor:
        """Return which part of the batch's rows are in this share."""
        return tf.cast(self.size, dtype) / tf.cast(self.rows, dtype)


Masks = dict[tuple[int, int], tf.Tensor]
"""The masks of a whole batch by the layer's id and the number of its call."""

Part = Callable[[Any, Any, Any, Masks], contextlib.ExitStack]


def whole_batch_dropout(model: keras.Model, patches: contextlib.ExitStack) -> Part:
    """Let the model's Dropout layers draw for the whole batch what they would draw without splitting.

    The first part draws a layer's mask by the layer's own `call` on ones; each part multiplies with its rows,
    or with several for each of its rows if they have been folded with another axis. What is not computed from
    the batch, such as a table of positions, has one mask for all parts.
    Returns the function by which a thread begins a part, which ends when what it returns is closed.
    """
    local = threading.local()

    def part(rows: Any, begin: Any, end: Any, masks: Masks) -> contextlib.ExitStack:
        undo, local.calls = contextlib.ExitStack(), {}
        keras_models.set_until(undo, local, "part", (rows, begin, end, masks))
        return undo

    def shared(layer: keras.layers.Dropout) -> Callable[..., tf.Tensor]:
        stock = layer.call

        def call(inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
            if not training or getattr(local, "part", None) is None:
                return stock(inputs, training=training)
            rows, begin, end, masks = local.part
            key = (id(layer), local.calls.get(id(layer), 0))
            local.calls[id(layer)] = key[1] + 1
            each, of_batch, checks = row_count(inputs), _is_of_batch(inputs), []
            if of_batch:  # from here on, how many of the input's rows there are for one of the batch
                is_fixed = isinstance(each, int) and not isinstance(end - begin, int)
                each = 0 if is_fixed else each // (end - begin)
                wanted = 0 if is_fixed else each * (end - begin)
                checks = require_rows({"": inputs}, wanted, f"the input of the Dropout layer {layer.name!r}")
            if key not in masks:
                dynamic = tf.shape(inputs)
                rest = [dynamic[i] if n is None else n for i, n in enumerate(inputs.shape)][1:]
                ones = tf.ones([each * rows if of_batch else each, *rest], inputs.dtype)
                masks[key] = stock(ones, training=True)
            with tf.control_dependencies(checks):
                return inputs * (masks[key][each * begin : each * end] if of_batch else masks[key])

        return call

    for layer in dropout_layers(model):
        keras_models.set_until(patches, layer, "call", shared(layer))
    return part


def _is_of_batch(tensor: tf.Tensor) -> bool:
    """Whether a traced tensor is computed from the values of an argument, and not from variables alone."""
    waiting, seen = [getattr(tensor, "op", None)], set()
    while waiting:
        operation = waiting.pop()
        if operation is None:  # not traced
            return True
        if operation.type == "Placeholder" and operation.outputs[0].dtype != tf.resource:
            return True
        if operation.name not in seen and operation.type not in ("Shape", "Size", "Rank"):
            seen.add(operation.name)
            waiting += [source.op for source in operation.inputs]
    return False


def dropout_layers(model: keras.Model) -> list[keras.layers.Dropout]:
    """Return the layers whose class is Dropout itself, since a subclass may do anything, and that drop."""
    layers = keras_models.flat_layers(model)
    return [layer for layer in layers if type(layer) is keras.layers.Dropout and layer.rate > 0]


_ACTIVATIONS: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {"Softmax": tf.nn.softmax, "Sigmoid": tf.sigmoid}
"""Functions that return probabilities, by the type of operation under which Keras looks for the logits."""


class Outputs:
    """The outputs of a model for some rows, nested, rows along axis 0. Made and used while tracing."""

    def __init__(self, structure: Any) -> None:
        self.structure = structure
        # All that a loss may look at: outputs, logits, masks.
        self.named: dict[str, tf.Tensor] = {}
        for name, leaf in named_leaves(structure).items():
            self.named[name] = leaf if _activation(leaf) is None else leaf.op.inputs[0]
            self.named |= {name + more: tensor for more, tensor in keras_replicas.carried_by(leaf).items()}
        self.tensors = list(self.named.values())

    def of(self, tensors: Sequence[tf.Tensor]) -> Any:
        """Return the outputs of other rows from `tensors` of those, under the tape that watches these."""
        rest = iter(tensors)

        def rebuild(leaf: Any) -> Any:
            if leaf is None:
                return None
            activation = _activation(leaf)
            # A new tensor, since others must not see what is set on it.
            whole = tf.identity(next(rest)) if activation is None else activation(next(rest))
            for name in keras_replicas.carried_by(leaf):
                setattr(whole, name, next(rest))
            return whole

        return keras.tree.map_structure(rebuild, self.structure)


def _activation(leaf: tf.Tensor) -> Callable[[tf.Tensor], tf.Tensor] | None:
    """Return the activation of an output under whose operation Keras looks for logits, or None."""
    operation = getattr(leaf, "op", None)
    if operation is None or keras_replicas.LOGITS in keras_replicas.carried_by(leaf):
        return None
    return _ACTIVATIONS.get(operation.type)
