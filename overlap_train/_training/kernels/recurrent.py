"""Which recurrent layers the passes here are equal to, and what calls them in place of Keras's loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from overlap_train._training.kernels.recurrent_passes import gru, lstm

__all__ = ["is_stock_recurrence", "recur"]

_CELLS = {keras.layers.LSTM: keras.layers.LSTMCell, keras.layers.GRU: keras.layers.GRUCell}


def is_stock_recurrence(layer: keras.Layer) -> bool:
    """Return whether `recur` computes what a layer's `inner_loop` does, for inputs of three dimensions."""
    cell: Any = getattr(layer, "cell", None)
    stock = _CELLS.get(type(layer)) is type(cell) or (
        type(layer) is keras.layers.RNN and type(cell) in _CELLS.values()
    )
    if not stock or {"call", "inner_loop"} & set(vars(layer)) or "call" in vars(cell):
        return False
    return (
        cell.activation is keras.activations.tanh
        and cell.recurrent_activation is keras.activations.sigmoid
        and layer.compute_dtype == cell.compute_dtype == cell.variable_dtype == "float32"
        and cell.implementation == 2  # 1 draws a mask for each gate
        and cell.recurrent_dropout == 0
        and cell.activity_regularizer is None
        and getattr(cell, "reset_after", True)
        and not layer.unroll
        and getattr(layer, "use_cudnn", "auto") is not True
        and not tf.config.list_logical_devices("GPU")  # where Keras asks cuDNN
    )


def recur(layer: keras.layers.RNN) -> Callable[..., Any]:
    """Return what is called in place of `layer.inner_loop`; `is_stock_recurrence` holds for the layer."""
    stock = layer.inner_loop

    def inner_loop(sequences: Any, initial_state: Any, mask: Any, training: Any = False) -> Any:
        states, first_mask = keras.tree.flatten(initial_state), keras.tree.flatten(mask)[0]
        inputs = [sequences, *states]
        fits = all(isinstance(tensor, tf.Tensor) and tensor.dtype == tf.float32 for tensor in inputs)
        fits = fits and sequences.shape.rank == 3 and sequences.shape[-1] is not None
        masked = first_mask is None or (isinstance(first_mask, tf.Tensor) and first_mask.shape.rank == 2)
        if not fits or not masked or not isinstance(training, bool | None):
            return stock(sequences, initial_state, mask, training=training)
        return _recur(layer, sequences, states, first_mask, bool(training))

    return inner_loop


def _recur(
    layer: keras.layers.RNN,
    sequences: tf.Tensor,
    states: list[tf.Tensor],
    mask: tf.Tensor | None,
    training: bool,
) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
    """Return the last output `[N, U]`, all outputs `[N, T, U]` if they are asked for, and the last states."""
    cell = layer.cell
    if training and 0.0 < cell.dropout < 1.0:
        sequences = sequences * cell.get_dropout_mask(sequences[:, 0, :])[:, tf.newaxis, :]
    inputs = _in_order(layer, tf.transpose(sequences, [1, 0, 2]))
    if mask is not None:
        mask = _in_order(layer, tf.transpose(tf.cast(mask, tf.bool)))[:, :, tf.newaxis]
    weights = [tf.convert_to_tensor(each) for each in (cell.kernel, cell.recurrent_kernel)]
    if cell.use_bias:
        weights.append(tf.convert_to_tensor(cell.bias))
    run = lstm if isinstance(cell, keras.layers.LSTMCell) else gru
    outputs, *last = run(inputs, weights, states, mask, every=layer.return_sequences)
    if mask is not None:
        outputs = _masked(layer, outputs, mask)
    if not layer.return_sequences:
        return outputs, outputs[:, tf.newaxis, :], last
    return outputs[-1], tf.transpose(outputs, [1, 0, 2]), last


def _in_order(layer: keras.layers.RNN, inputs: tf.Tensor) -> tf.Tensor:
    return tf.reverse(inputs, [0]) if layer.go_backwards else inputs


def _masked(layer: keras.layers.RNN, outputs: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Return outputs as Keras masks them: zero where asked, and before the first step that is not masked."""
    seen = mask
    if not layer.zero_output_for_mask:
        seen = tf.cumsum(tf.cast(mask, tf.int32)) > 0
    return tf.where(seen if layer.return_sequences else seen[-1], outputs, 0.0)
