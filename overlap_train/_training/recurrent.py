"""LSTM and GRU over a sequence, differentiable, in place of the loops of Keras's layers.

Keras computes a time step from its input and state, and TensorFlow derives the backward pass: some fifteen
operations forward and forty backward, with a list for every intermediate result. Here one product before the
loop projects the inputs of all steps, the loop records gates and states, the backward loop computes the
gradients of the gates, and three products after it those of weights and inputs. Results differ from Keras's
by rounding.

All functions are called while a graph is traced, by the thread that traces it. `T` stands for the time steps,
`N` for the rows, `F` for the features and `U` for the units.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

_Tensors = Sequence[tf.Tensor]


@dataclass(frozen=True)
class _Run:
    """A pass of a cell over a sequence.

    The weights are those of the cell: kernel `[F, 4U]`, recurrent kernel `[U, 4U]` and, if it has one, bias
    `[4U]` of an `LSTMCell`; `[F, 3U]`, `[U, 3U]` and `[2, 3U]` of a `GRUCell` that resets after.
    """

    inputs: tf.Tensor  # float32 [T, N, F], in the order in which they are read
    mask: tf.Tensor | None  # bool [T, N, 1], False where a state passes through a step unchanged
    weights: _Tensors
    states: _Tensors  # before the first step, each [N, U]: `h` and, of an LSTM, `c`

    @property
    def steps(self) -> Any:
        """The time steps: an int if it is known, else int32[]."""
        static = self.inputs.shape[0]
        return tf.shape(self.inputs)[0] if static is None else static


def _differentiable(forward: Callable[..., Any], backward: Callable[..., Any], run: _Run, every: bool) -> Any:
    """Return the outputs of every step `[T, N, U]` or of the last `[N, U]`, and the last states."""
    count = len(run.weights)

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def differentiable(inputs: tf.Tensor, *rest: tf.Tensor) -> Any:
        inner = _Run(inputs, run.mask, rest[:count], rest[count:])
        outputs, last, lists = forward(inner)

        def gradient(*upstream: tf.Tensor) -> list[tf.Tensor]:
            by_step, ends = (upstream[0], upstream[1:]) if every else (None, upstream)
            return backward(inner, outputs, lists, by_step, ends)

        return [outputs, *last] if every else last, gradient

    results = list(differentiable(run.inputs, *run.weights, *run.states))
    return results if every else [results[0], *results]


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
        new_h, new_c = _unless_masked(run.mask, t, (new_h, new_c), (h, c))
        return t + 1, new_h, new_c, *_write(lists, t, (new_h, new_c, s, g))

    lists = [_list(steps, width) for width in (units, units, 3 * units, units)]
    _, h, c, hs, *lists = tf.while_loop(lambda t, *_: t < steps, body, [tf.constant(0), *run.states, *lists])
    return hs.stack(), [h, c], lists


def _lstm_backward(
    run: _Run, outputs: tf.Tensor, lists: list[tf.TensorArray], d_by_step: tf.Tensor | None, d_ends: _Tensors
) -> list[tf.Tensor]:
    kernel, recurrent, *bias = (_ifog(weight) for weight in run.weights)
    steps, back = run.steps, tf.transpose(recurrent)
    carries, s_list, g_list = lists
    before = tf.concat([run.states[1][tf.newaxis], carries.stack()[:-1]], 0)

    def body(t: tf.Tensor, dh: tf.Tensor, dc: tf.Tensor, d_list: tf.TensorArray) -> Any:
        t = t - 1
        if d_by_step is not None:
            dh += tf.gather(d_by_step, t)
        (dh, dc), past = _through(run.mask, t, (dh, dc))
        c, s, g = tf.gather(before, t), s_list.read(t), g_list.read(t)
        i, f, o = tf.split(s, 3, 1)
        y = tf.tanh(f * c + i * g)
        dc += tf.raw_ops.TanhGrad(y=y, dy=dh * o)
        ds = tf.raw_ops.SigmoidGrad(y=s, dy=tf.concat([dc * g, dc * c, dh * y], 1))
        d = tf.concat([ds, tf.raw_ops.TanhGrad(y=g, dy=dc * i)], 1)
        new_dh, new_dc = _sum((tf.matmul(d, back), dc * f), past)
        return t, new_dh, new_dc, d_list.write(t, d)

    start = [tf.convert_to_tensor(steps), *d_ends, _list(steps, recurrent.shape[1])]
    _, dh, dc, d_list = tf.while_loop(lambda t, *_: t > 0, body, start)
    d = d_list.stack()
    d_inputs, d_kernel = _d_projection(run.inputs, kernel, d)
    d_weights = [d_kernel, _d_kernel(_before(run.states[0], outputs), d), *([_d_bias(d)] if bias else [])]
    return [d_inputs, *map(_ifgo, d_weights), dh, dc]


def _gru_forward(run: _Run) -> tuple[tf.Tensor, list[tf.Tensor], list[tf.TensorArray]]:
    """Return outputs, last state, and the lists of gates `z, r`, candidates and values that `r` resets."""
    kernel, recurrent, *bias = run.weights
    biases = tf.unstack(bias[0]) if bias else []
    units = recurrent.shape[0]
    steps, projected = run.steps, _project(run.inputs, kernel, biases[:1])

    def body(t: tf.Tensor, h: tf.Tensor, *lists: tf.TensorArray) -> Any:
        x, y = tf.gather(projected, t), _biased(tf.matmul(h, recurrent), biases[1:])
        (x_s, x_g), (y_s, y_g) = (tf.split(value, [2 * units, units], 1) for value in (x, y))
        s = tf.sigmoid(x_s + y_s)
        z, r = tf.split(s, 2, 1)
        g = tf.tanh(x_g + r * y_g)
        (new_h,) = _unless_masked(run.mask, t, (g + z * (h - g),), (h,))
        return t + 1, new_h, *_write(lists, t, (new_h, s, g, y_g))

    lists = [_list(steps, width) for width in (units, 2 * units, units, units)]
    _, h, hs, *lists = tf.while_loop(lambda t, *_: t < steps, body, [tf.constant(0), *run.states, *lists])
    return hs.stack(), [h], lists


def _gru_backward(
    run: _Run, outputs: tf.Tensor, lists: list[tf.TensorArray], d_by_step: tf.Tensor | None, d_ends: _Tensors
) -> list[tf.Tensor]:
    kernel, recurrent, *bias = run.weights
    units = recurrent.shape[0]
    steps, back = run.steps, tf.transpose(recurrent)
    s_list, g_list, y_list = lists
    before = _before(run.states[0], outputs)

    def body(t: tf.Tensor, dh: tf.Tensor, ds_list: tf.TensorArray, dx_list: tf.TensorArray) -> Any:
        t = t - 1
        if d_by_step is not None:
            dh += tf.gather(d_by_step, t)
        (dh,), past = _through(run.mask, t, (dh,))
        h, s, g = tf.gather(before, t), s_list.read(t), g_list.read(t)
        z, r = tf.split(s, 2, 1)
        direct_dh = dh * z
        dx = tf.raw_ops.TanhGrad(y=g, dy=dh - direct_dh)
        ds = tf.raw_ops.SigmoidGrad(y=s, dy=tf.concat([dh * (h - g), dx * y_list.read(t)], 1))
        d = tf.concat([ds, dx * r], 1)
        (new_dh,) = _sum((direct_dh + tf.matmul(d, back),), past)
        return t, new_dh, ds_list.write(t, d), dx_list.write(t, dx)

    start = [tf.convert_to_tensor(steps), *d_ends, _list(steps, 3 * units), _list(steps, units)]
    _, dh, d_list, dx_list = tf.while_loop(lambda t, *_: t > 0, body, start)
    d = d_list.stack()
    d_x = tf.concat([d[:, :, : 2 * units], dx_list.stack()], 2)
    d_inputs, d_kernel = _d_projection(run.inputs, kernel, d_x)
    d_bias = [tf.stack([_d_bias(d_x), _d_bias(d)])] if bias else []
    return [d_inputs, d_kernel, _d_kernel(before, d), *d_bias, dh]


def _ifog(weights: tf.Tensor) -> tf.Tensor:
    """Return an LSTM's weights with the output gate before the candidate: one sigmoid does for three."""
    i, f, g, o = tf.split(weights, 4, -1)
    return tf.concat([i, f, o, g], -1)


# Exchanging the last two parts is its own inverse.
_ifgo = _ifog


def _list(steps: Any, width: int) -> tf.TensorArray:
    return tf.TensorArray(tf.float32, steps, element_shape=[None, width])


def _write(lists: Sequence[tf.TensorArray], t: tf.Tensor, values: _Tensors) -> list[tf.TensorArray]:
    return [each.write(t, value) for each, value in zip(lists, values, strict=True)]


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


def _unless_masked(mask: tf.Tensor | None, t: tf.Tensor, new: _Tensors, old: _Tensors) -> list[tf.Tensor]:
    """Return the states after a step: the old ones in rows that are masked."""
    if mask is not None:
        unmasked = tf.gather(mask, t)
        new = [tf.where(unmasked, *pair) for pair in zip(new, old, strict=True)]
    for state, before in zip(new, old, strict=True):
        state.set_shape(before.shape)  # which a loop does not allow to become less specific
    return list(new)


def _through(mask: tf.Tensor | None, t: tf.Tensor, d: _Tensors) -> tuple[_Tensors, _Tensors]:
    """Return the gradients that go through a step, and those that go past it in masked rows."""
    if mask is None:
        return d, ()
    unmasked = tf.gather(mask, t)
    through = [tf.where(unmasked, gradient, 0.0) for gradient in d]
    return through, [whole - part for whole, part in zip(d, through, strict=True)]


def _sum(through: _Tensors, past: _Tensors) -> _Tensors:
    return [sum(pair) for pair in zip(through, past, strict=True)] if past else through


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
    """Return a replacement of `layer.inner_loop` for a layer with `is_stock_recurrence`."""
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
    """Return the last output `[N, U]`, all outputs `[N, T, U]` for a layer of sequences, and last states."""
    cell, every = layer.cell, layer.return_sequences
    if training and 0.0 < cell.dropout < 1.0:
        sequences = sequences * cell.get_dropout_mask(sequences[:, 0, :])[:, tf.newaxis, :]
    inputs = _in_order(layer, tf.transpose(sequences, [1, 0, 2]))
    if mask is not None:
        mask = _in_order(layer, tf.transpose(tf.cast(mask, tf.bool)))[:, :, tf.newaxis]
    variables = [cell.kernel, cell.recurrent_kernel, *([cell.bias] if cell.use_bias else [])]
    run = _Run(inputs, mask, list(map(tf.convert_to_tensor, variables)), states)
    is_lstm = isinstance(cell, keras.layers.LSTMCell)
    passes = (_lstm_forward, _lstm_backward) if is_lstm else (_gru_forward, _gru_backward)
    outputs, *last = _differentiable(*passes, run, every)
    if mask is not None:
        outputs = _mask_outputs(layer, outputs, mask)
    if not every:
        return outputs, outputs[:, tf.newaxis, :], last
    return outputs[-1], tf.transpose(outputs, [1, 0, 2]), last


def _in_order(layer: keras.layers.RNN, inputs: tf.Tensor) -> tf.Tensor:
    return tf.reverse(inputs, [0]) if layer.go_backwards else inputs


def _mask_outputs(layer: keras.layers.RNN, outputs: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Return outputs as Keras masks them: zero if the layer says so, and before the first unmasked step."""
    if not layer.zero_output_for_mask:
        mask = tf.cumsum(tf.cast(mask, tf.int32)) > 0
    return tf.where(mask if layer.return_sequences else mask[-1], outputs, 0.0)
