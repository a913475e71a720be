"""LSTM and GRU over a sequence, differentiable, and which of Keras's layers they are equal to.

Keras computes a time step from its input and state, and TensorFlow derives the backward pass: some fifteen
operations forward and forty backward, with a list for every intermediate result. Here the inputs of all steps
are projected by one product before the loop, the loop keeps gates and states, the backward loop computes the
gradients of the gates, and those of weights and inputs are three products after it. Results differ from
Keras's by rounding.

All is called while a graph is traced, by the thread that traces it. `T` are the time steps, `N` the rows, `F`
the features and `U` the units.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

__all__ = ["gru", "is_stock_recurrence", "lstm", "recur"]


_Tensors = Sequence[tf.Tensor]


def lstm(
    inputs: tf.Tensor, weights: _Tensors, states: _Tensors, mask: tf.Tensor | None, *, every: bool
) -> list[tf.Tensor]:
    """Return the outputs of all steps `[T, N, U]` or of the last `[N, U]`, and the last `h` and `c`.

    The weights are those of an `LSTMCell`: kernel `[F, 4U]`, recurrent kernel `[U, 4U]` and, if it has one,
    its bias `[4U]`. With `every`, the outputs of all steps are returned.
    """
    return _differentiable(_lstm_forward, _lstm_backward, _Run(inputs, mask, weights, states), every)


def gru(
    inputs: tf.Tensor, weights: _Tensors, states: _Tensors, mask: tf.Tensor | None, *, every: bool
) -> list[tf.Tensor]:
    """Return the outputs of all steps `[T, N, U]`, or of the last `[N, U]`, and the last `h` `[N, U]`.

    The weights are those of a `GRUCell` that resets after: kernel `[F, 3U]`, recurrent kernel `[U, 3U]` and,
    if it has one, its bias `[2, 3U]`. With `every`, the outputs of all steps are returned.
    """
    return _differentiable(_gru_forward, _gru_backward, _Run(inputs, mask, weights, states), every)


@dataclass(frozen=True)
class _Run:
    """What a pass goes through."""

    inputs: tf.Tensor  # float32 [T, N, F], in the order in which they are read
    mask: tf.Tensor | None  # bool [T, N, 1], False where a state passes through a step unchanged
    weights: _Tensors
    states: _Tensors  # before the first step, each [N, U]

    @property
    def steps(self) -> Any:
        """The time steps: an int if it is known, else int32[]."""
        static = self.inputs.shape[0]
        return tf.shape(self.inputs)[0] if static is None else static


def _differentiable(forward: Callable[..., Any], backward: Callable[..., Any], run: _Run, every: bool) -> Any:
    count = len(run.weights)

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def differentiable(inputs: tf.Tensor, *rest: tf.Tensor) -> Any:
        here = _Run(inputs, run.mask, rest[:count], rest[count:])
        outputs, last, kept = forward(here)

        def gradient(*upstream: tf.Tensor) -> list[tf.Tensor]:
            each, ends = (upstream[0], upstream[1:]) if every else (None, upstream)
            return backward(here, outputs, kept, each, ends)

        return [outputs, *last] if every else last, gradient

    found = list(differentiable(run.inputs, *run.weights, *run.states))
    return found if every else [found[0], *found]


def _lstm_forward(run: _Run) -> tuple[tf.Tensor, list[tf.Tensor], list[tf.TensorArray]]:
    """Return outputs, last states, and the lists of gates `i, f, o` and `g`, and of carries."""
    kernel, recurrent, *bias = (_ifog(weight) for weight in run.weights)
    units = recurrent.shape[0]
    steps, projected = run.steps, _project(run.inputs, kernel, bias)

    def body(t: tf.Tensor, h: tf.Tensor, c: tf.Tensor, *lists: tf.TensorArray) -> Any:
        z = tf.gather(projected, t) + tf.matmul(h, recurrent)
        s, g = tf.split(z, [3 * units, units], 1)
        s, g = tf.sigmoid(s), tf.tanh(g)
        i, f, o = tf.split(s, 3, 1)
        new_c = f * c + i * g
        new_h = o * tf.tanh(new_c)
        new_h, new_c = _passed(run.mask, t, (new_h, new_c), (h, c))
        written = zip(lists, (new_h, new_c, s, g), strict=True)
        return t + 1, new_h, new_c, *(each.write(t, value) for each, value in written)

    lists = [_list(steps, width) for width in (units, units, 3 * units, units)]
    _, h, c, hs, *kept = tf.while_loop(lambda t, *_: t < steps, body, [tf.constant(0), *run.states, *lists])
    return hs.stack(), [h, c], kept


def _lstm_backward(
    run: _Run, outputs: tf.Tensor, kept: list[tf.TensorArray], each: tf.Tensor | None, ends: _Tensors
) -> list[tf.Tensor]:
    kernel, recurrent, *bias = (_ifog(weight) for weight in run.weights)
    steps, back = run.steps, tf.transpose(recurrent)
    carries, s_list, g_list = kept
    before = tf.concat([run.states[1][tf.newaxis], carries.stack()[:-1]], 0)

    def body(t: tf.Tensor, dh: tf.Tensor, dc: tf.Tensor, written: tf.TensorArray) -> Any:
        t = t - 1
        if each is not None:
            dh += tf.gather(each, t)
        (dh, dc), passed = _reached(run.mask, t, (dh, dc))
        c, s, g = tf.gather(before, t), s_list.read(t), g_list.read(t)
        i, f, o = tf.split(s, 3, 1)
        y = tf.tanh(f * c + i * g)
        dc += tf.raw_ops.TanhGrad(y=y, dy=dh * o)
        ds = tf.raw_ops.SigmoidGrad(y=s, dy=tf.concat([dc * g, dc * c, dh * y], 1))
        d = tf.concat([ds, tf.raw_ops.TanhGrad(y=g, dy=dc * i)], 1)
        new_dh, new_dc = _added((tf.matmul(d, back), dc * f), passed)
        return t, new_dh, new_dc, written.write(t, d)

    start = [tf.convert_to_tensor(steps), *ends, _list(steps, recurrent.shape[1])]
    _, dh, dc, found = tf.while_loop(lambda t, *_: t > 0, body, start)
    d = found.stack()
    d_inputs, d_kernel = _d_projection(run.inputs, kernel, d)
    d_weights = [d_kernel, _d_kernel(_before(run.states[0], outputs), d), *([_d_bias(d)] if bias else [])]
    return [d_inputs, *(_ifgo(each) for each in d_weights), dh, dc]


def _gru_forward(run: _Run) -> tuple[tf.Tensor, list[tf.Tensor], list[tf.TensorArray]]:
    """Return outputs, last state, and the lists of gates `z, r`, of candidates and of what `r` resets."""
    kernel, recurrent, *bias = run.weights
    biases = tf.unstack(bias[0]) if bias else []
    units = recurrent.shape[0]
    steps, projected = run.steps, _project(run.inputs, kernel, biases[:1])

    def body(t: tf.Tensor, h: tf.Tensor, *lists: tf.TensorArray) -> Any:
        x, y = tf.gather(projected, t), _biased(tf.matmul(h, recurrent), biases[1:])
        (x_s, x_g), (y_s, y_g) = (tf.split(each, [2 * units, units], 1) for each in (x, y))
        s = tf.sigmoid(x_s + y_s)
        z, r = tf.split(s, 2, 1)
        g = tf.tanh(x_g + r * y_g)
        (new_h,) = _passed(run.mask, t, (g + z * (h - g),), (h,))
        written = zip(lists, (new_h, s, g, y_g), strict=True)
        return t + 1, new_h, *(each.write(t, value) for each, value in written)

    lists = [_list(steps, width) for width in (units, 2 * units, units, units)]
    _, h, hs, *kept = tf.while_loop(lambda t, *_: t < steps, body, [tf.constant(0), *run.states, *lists])
    return hs.stack(), [h], kept


def _gru_backward(
    run: _Run, outputs: tf.Tensor, kept: list[tf.TensorArray], each: tf.Tensor | None, ends: _Tensors
) -> list[tf.Tensor]:
    kernel, recurrent, *bias = run.weights
    units = recurrent.shape[0]
    steps, back = run.steps, tf.transpose(recurrent)
    s_list, g_list, y_list = kept
    before = _before(run.states[0], outputs)

    def body(t: tf.Tensor, dh: tf.Tensor, ds_list: tf.TensorArray, dx_list: tf.TensorArray) -> Any:
        t = t - 1
        if each is not None:
            dh += tf.gather(each, t)
        (dh,), passed = _reached(run.mask, t, (dh,))
        h, s, g = tf.gather(before, t), s_list.read(t), g_list.read(t)
        z, r = tf.split(s, 2, 1)
        kept_dh = dh * z
        dx = tf.raw_ops.TanhGrad(y=g, dy=dh - kept_dh)
        ds = tf.raw_ops.SigmoidGrad(y=s, dy=tf.concat([dh * (h - g), dx * y_list.read(t)], 1))
        d = tf.concat([ds, dx * r], 1)
        (new_dh,) = _added((kept_dh + tf.matmul(d, back),), passed)
        return t, new_dh, ds_list.write(t, d), dx_list.write(t, dx)

    lists = [_list(steps, 3 * units), _list(steps, units)]
    start = [tf.convert_to_tensor(steps), *ends, *lists]
    _, dh, d_list, dx_list = tf.while_loop(lambda t, *_: t > 0, body, start)
    d = d_list.stack()
    d_x = tf.concat([d[:, :, : 2 * units], dx_list.stack()], 2)
    d_inputs, d_kernel = _d_projection(run.inputs, kernel, d_x)
    d_bias = [tf.stack([_d_bias(d_x), _d_bias(d)])] if bias else []
    return [d_inputs, d_kernel, _d_kernel(before, d), *d_bias, dh]


def _ifog(weights: tf.Tensor) -> tf.Tensor:
    """Return an LSTM's weights with the output gate before the candidate: one sigmoid then does for three."""
    i, f, g, o = tf.split(weights, 4, -1)
    return tf.concat([i, f, o, g], -1)


# It exchanges the last two parts, and so is its own inverse.
_ifgo = _ifog


def _steps(inputs: tf.Tensor) -> Any:
    return tf.shape(inputs)[0] if inputs.shape[0] is None else inputs.shape[0]


def _list(steps: Any, width: int) -> tf.TensorArray:
    return tf.TensorArray(tf.float32, steps, element_shape=[None, width])


def _flat(sequences: tf.Tensor) -> tf.Tensor:
    return tf.reshape(sequences, [-1, sequences.shape[-1]])


def _biased(values: tf.Tensor, bias: _Tensors) -> tf.Tensor:
    return tf.nn.bias_add(values, bias[0]) if bias else values


def _project(inputs: tf.Tensor, kernel: tf.Tensor, bias: _Tensors) -> tf.Tensor:
    projected = _biased(tf.matmul(_flat(inputs), kernel), bias)
    return tf.reshape(projected, [*tf.unstack(tf.shape(inputs)[:2]), kernel.shape[1]])


def _d_projection(inputs: tf.Tensor, kernel: tf.Tensor, d: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    d_inputs = tf.matmul(_flat(d), kernel, transpose_b=True)
    return tf.reshape(d_inputs, tf.shape(inputs)), _d_kernel(inputs, d)


def _d_kernel(inputs: tf.Tensor, d: tf.Tensor) -> tf.Tensor:
    return tf.matmul(_flat(inputs), _flat(d), transpose_a=True)


def _d_bias(d: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(_flat(d), 0)


def _before(first: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Return the values `[T, N, U]` that each step began with."""
    return tf.concat([first[tf.newaxis], values[:-1]], 0)


def _passed(mask: tf.Tensor | None, t: tf.Tensor, new: _Tensors, old: _Tensors) -> list[tf.Tensor]:
    """Return the states after a step: the old ones in rows that are masked."""
    if mask is not None:
        reached = tf.gather(mask, t)
        new = [tf.where(reached, *each) for each in zip(new, old, strict=True)]
    for state, before in zip(new, old, strict=True):
        state.set_shape(before.shape)  # which a loop does not allow to become less specific
    return list(new)


def _reached(mask: tf.Tensor | None, t: tf.Tensor, d: _Tensors) -> tuple[_Tensors, _Tensors]:
    """Return the gradients that go through a step, and those that go past it."""
    if mask is None:
        return d, ()
    reached = tf.gather(mask, t)
    through = [tf.where(reached, each, 0.0) for each in d]
    return through, [whole - part for whole, part in zip(d, through, strict=True)]


def _added(d: _Tensors, passed: _Tensors) -> _Tensors:
    return [sum(each) for each in zip(d, passed, strict=True)] if passed else d


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
