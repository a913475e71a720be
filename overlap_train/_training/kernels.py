"""Stock layers and optimizers on faster operations than Keras's, while a training step is traced.

Conv2D runs on `overlap_train.conv`, whose kernels are timed next to TensorFlow's shape by shape;
DepthwiseConv2D takes the gradient of its filters from there, where they are many or larger than 3×3;
BatchNormalization and Adam on TensorFlow's fused operations, where Keras composes them of a dozen or two that
each go through the whole batch or all weights; LSTM and GRU in loops of fewer operations. They compute the
same in another order, so results differ by rounding. Layers and optimizer are the same before and after, and
for other threads all the time. A layer whose `call` is a `tf.function` of the user keeps what was traced
first.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from overlap_train._keras import models as keras_models
from overlap_train._keras import optimizers as keras_optimizers
from overlap_train._training.recurrent import is_stock_recurrence, recur
from overlap_train.conv import library, operation, selection
from overlap_train.conv.acceleration import stock_convolutions
from overlap_train.conv.convolution import DepthwiseConvolution, may_run_natively

__all__ = [
    "FastKernels",
    "convolve_depthwise",
    "find_kernels",
    "fused_adam",
    "fused_batch_normalization",
    "has_slow_gradient",
    "steps_that_pay_timing",
]


# Fewer channels do not fill a vector; TensorFlow has a kernel of its own for 3x3 filters, which keeps up with
# ours as long as they are few.
_FEWEST, _FEWEST_3X3 = 16, 64


def has_slow_gradient(layer: keras.Layer) -> bool:
    """Return whether a layer is a stock DepthwiseConv2D whose filters have a faster gradient here."""
    if type(layer) is not keras.layers.DepthwiseConv2D or "call" in vars(layer) or not layer.built:
        return False
    channels = layer.kernel.shape[2]
    return (
        layer.compute_dtype == layer.variable_dtype == "float32"
        and layer.data_format == "channels_last"
        and layer.depth_multiplier == 1
        and tuple(layer.dilation_rate) == (1, 1)
        and layer.strides[0] == layer.strides[1]
        and channels >= (_FEWEST_3X3 if tuple(layer.kernel_size) == (3, 3) else _FEWEST)
        and not tf.config.list_physical_devices("GPU")  # our kernel would pull the tensors off it
    )


def convolve_depthwise(layer: keras.layers.DepthwiseConv2D) -> Callable[[tf.Tensor], tf.Tensor]:
    """Return what is called in place of `layer.call`; `has_slow_gradient` holds for the layer."""
    stock = layer.call
    convolution = DepthwiseConvolution(layer.strides[0], layer.padding.upper())

    def call(inputs: tf.Tensor) -> tf.Tensor:
        fits = inputs.dtype == tf.float32 and inputs.shape.rank == 4
        if not fits or not layer.trainable or not may_run_natively(inputs.dtype):
            return stock(inputs)
        y = convolution(inputs, tf.convert_to_tensor(layer.kernel))
        if layer.use_bias:
            y = tf.nn.bias_add(y, tf.convert_to_tensor(layer.bias))
        return y if layer.activation is None else layer.activation(y)

    return call


_Call = Callable[..., Any]
_Swap = tuple[Any, str, Callable[[int | None], _Call]]
# Below so many weights, updating them is a small part of any step.
_MANY_WEIGHTS = 1 << 17
# Of a model with fewer of them, Keras's graph is traced and prepared in a moment.
_MANY_PARTS = 40
# Its three directions take 0.3 s to be timed, and save some milliseconds of a step.
_STEPS_FOR_A_CONVOLUTION = 50


@dataclass(frozen=True)
class FastKernels:
    """The faster operations for one model."""

    names: tuple[str, ...]  # of what they compute, in order, such as "convolution"
    swaps: tuple[_Swap, ...]  # object, name of the method, what makes another one for the rows of a batch
    times: bool  # whether a trace times convolutions of new shapes, or leaves them to TensorFlow

    def around(self, function: _Call, rows: int | None) -> _Call:
        """Return a function of batches of `rows` rows that does the same, traced on the faster operations."""

        def run(*arguments: Any) -> Any:
            with contextlib.ExitStack() as stack:
                if not self.times:
                    stack.enter_context(selection.only_known())
                for owner, method, make in self.swaps:
                    stack.enter_context(_swapped(owner, method, make(rows)))
                return function(*arguments)

        return run


def find_kernels(
    model: keras.Model, *, build: bool = False, times: bool = True, long: bool = True
) -> FastKernels | None:
    """Return the faster operations for a built model, or None if there is nothing that they would change.

    With `build` the convolution may be compiled if it is not yet. Without `times`, a convolution of a shape
    that was never timed is left to TensorFlow. A run that is not `long` gains only where the graph of many
    parts becomes half as large, and else keeps Keras's last bit.
    """
    found = _layers(model, build=build)
    if found or not long or _weights(model) >= _MANY_WEIGHTS:
        found |= _optimizer(model)
    if not long:
        found.pop("recurrence", None)
        updates = len(model.trainable_variables) if "Adam" in found else 0
        if updates + len(found.get("normalization", ())) < _MANY_PARTS:
            return None
    if not found:
        return None
    return FastKernels(tuple(found), tuple(swap for swaps in found.values() for swap in swaps), times)


def steps_that_pay_timing(model: keras.Model) -> int:
    """Return from how many steps on it pays to time the convolutions of a model."""
    return _STEPS_FOR_A_CONVOLUTION * len(_float32_convolutions(model))


def _layers(model: keras.Model, *, build: bool) -> dict[str, list[_Swap]]:
    found: dict[str, list[_Swap]] = {}
    convolutions = _float32_convolutions(model)
    if convolutions and (build or library.is_built()):
        found["convolution"] = [
            (layer, "call", functools.partial(_convolution, layer)) for layer in convolutions
        ]
    depthwise = [layer for layer in keras_models.flat_layers(model) if has_slow_gradient(layer)]
    if depthwise and (build or library.is_built()):
        found["depthwise convolution"] = [
            (layer, "call", functools.partial(_depthwise, layer)) for layer in depthwise
        ]
    normalizations = [layer for layer in keras_models.flat_layers(model) if _is_stock_normalization(layer)]
    if normalizations:
        found["normalization"] = [
            (layer, "call", functools.partial(_normalization, layer)) for layer in normalizations
        ]
    recurrences = [layer for layer in keras_models.flat_layers(model) if is_stock_recurrence(layer)]
    if recurrences:
        found["recurrence"] = [
            (layer, "inner_loop", functools.partial(_recurrence, layer)) for layer in recurrences
        ]
    return found


def _optimizer(model: keras.Model) -> dict[str, list[_Swap]]:
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)  # of a LossScaleOptimizer
    if not _is_stock_adam(optimizer):
        return {}
    return {"Adam": [(optimizer, "update_step", functools.partial(_adam, optimizer))]}


def _weights(model: keras.Model) -> int:
    return sum(math.prod(variable.shape) for variable in model.trainable_variables)


def _swapped(owner: Any, method: str, fast: _Call) -> contextlib.ExitStack:
    """Give an object another method, for this thread only."""
    stock, thread = getattr(owner, method), threading.get_ident()

    @functools.wraps(stock)
    def call(*arguments: Any, **options: Any) -> Any:
        chosen = fast if threading.get_ident() == thread else stock
        return chosen(*arguments, **options)

    before = vars(owner).get(method)
    # Past Keras's attribute tracking, which has nothing to track here.
    object.__setattr__(owner, method, call)
    undo = contextlib.ExitStack()

    @undo.callback
    def put_back() -> None:
        if before is not None:
            object.__setattr__(owner, method, before)
        else:
            vars(owner).pop(method, None)

    return undo


def _float32_convolutions(model: keras.Model) -> list[keras.layers.Conv2D]:
    return [layer for layer in stock_convolutions(model) if layer.compute_dtype == "float32"]


def _convolution(layer: keras.layers.Conv2D, rows: int | None) -> _Call:
    return functools.partial(operation.convolve, layer, batch_hint=rows)


def _depthwise(layer: keras.layers.DepthwiseConv2D, _: int | None) -> _Call:
    return convolve_depthwise(layer)


def _recurrence(layer: keras.layers.RNN, _: int | None) -> _Call:
    return recur(layer)


def _is_stock_normalization(layer: keras.Layer) -> bool:
    return (
        type(layer) is keras.layers.BatchNormalization
        and not {"call", "_moments"} & set(vars(layer))
        and layer.compute_dtype == "float32"
        and not layer.synchronized
        and not getattr(layer, "renorm", False)
    )


def _normalization(layer: keras.layers.BatchNormalization, _: int | None) -> _Call:
    stock = layer.call

    def call(inputs: tf.Tensor, training: Any = None, mask: Any = None) -> tf.Tensor:
        last = inputs.shape.rank is not None and layer.axis in (-1, inputs.shape.rank - 1)
        fits = last and inputs.shape[-1] is not None and inputs.dtype == tf.float32
        if training is not True or not layer.trainable or mask is not None or not fits:
            return stock(inputs, training=training, mask=mask)
        return fused_batch_normalization(layer, inputs)

    return call


def fused_batch_normalization(layer: keras.layers.BatchNormalization, inputs: tf.Tensor) -> tf.Tensor:
    """Normalise a batch `float32[..., channels]` in training, and update the layer's moving averages."""
    channels = inputs.shape[-1]
    image = inputs if inputs.shape.rank == 4 else tf.reshape(inputs, [-1, 1, 1, channels])
    gamma = tf.convert_to_tensor(layer.gamma) if layer.scale else tf.ones([channels])
    beta = tf.convert_to_tensor(layer.beta) if layer.center else tf.zeros([channels])
    nothing = tf.zeros([0])
    output, mean, sample_variance, *_ = tf.raw_ops.FusedBatchNormV3(
        x=image,
        scale=gamma,
        offset=beta,
        mean=nothing,
        variance=nothing,
        epsilon=layer.epsilon,
        is_training=True,
    )
    # The operation divides by n - 1, Keras by n.
    n = tf.cast(tf.size(image) // channels, tf.float32)
    averages = ((layer.moving_mean, mean), (layer.moving_variance, sample_variance * ((n - 1.0) / n)))
    for average, value in averages:
        average.assign(average * layer.momentum + value * (1.0 - layer.momentum))
    return output if inputs.shape.rank == 4 else tf.reshape(output, tf.shape(inputs))


def _is_stock_adam(optimizer: Any) -> bool:
    base = keras.optimizers.Adam
    return (
        isinstance(optimizer, base)
        and type(optimizer).update_step is base.update_step
        and "update_step" not in vars(optimizer)
        and not optimizer.amsgrad
    )


def _adam(optimizer: keras.optimizers.Adam, _: int | None) -> _Call:
    stock = optimizer.update_step

    def update_step(gradient: Any, variable: Any, learning_rate: Any) -> None:
        dense = isinstance(gradient, tf.Tensor) and variable.dtype == gradient.dtype == tf.float32
        if dense and not tf.distribute.has_strategy():
            fused_adam(optimizer, gradient, variable, learning_rate)
        else:
            stock(gradient, variable, learning_rate)

    return update_step


def fused_adam(
    optimizer: keras.optimizers.Adam, gradient: tf.Tensor, variable: tf.Variable, learning_rate: Any
) -> None:
    """Update a variable and its two moments as `optimizer.update_step` does, going through them once.

    The gradient is float32 and dense, and the optimizer has no `amsgrad`.
    """
    m, v = keras_optimizers.adam_moments(optimizer, variable)
    step = tf.cast(optimizer.iterations + 1, tf.float32)
    beta_1, beta_2 = tf.constant(optimizer.beta_1), tf.constant(optimizer.beta_2)
    tf.raw_ops.ResourceApplyAdam(
        var=variable.handle,
        m=m.handle,
        v=v.handle,
        beta1_power=tf.pow(beta_1, step),
        beta2_power=tf.pow(beta_2, step),
        lr=tf.cast(learning_rate, tf.float32),
        beta1=beta_1,
        beta2=beta_2,
        epsilon=optimizer.epsilon,
        grad=gradient,
    )
