"""Stock layers and optimizers on faster operations than Keras's, while a training step is traced.

Conv2D runs on `overlap_train.conv`, whose kernels are timed against TensorFlow's for each shape;
DepthwiseConv2D takes the gradient of its filters from there, where they are many or larger than 3×3;
BatchNormalization and Adam run on TensorFlow's fused operations, where Keras composes them of a dozen or two
that each go through the whole batch or all weights. They compute the same in another order, so results differ
by rounding. Layers and the optimizer are unchanged afterwards, and for other threads at any time. A layer
whose `call` is a user's `tf.function` keeps its first trace.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from overlap_train._keras import models as keras_models
from overlap_train._keras import optimizers as keras_optimizers
from overlap_train.conv import library, operation, selection
from overlap_train.conv.acceleration import stock_convolutions
from overlap_train.conv.convolution import DepthwiseConvolution, may_run_natively

# Fewer channels do not fill a vector; TensorFlow's special kernel for 3x3 filters keeps up with ours as long
# as there are few.
_FEWEST, _FEWEST_3X3 = 16, 64
# With fewer weights, updating them is a small part of any step.
_MANY_WEIGHTS = 1 << 17
# With fewer parts, Keras's graph of a model is traced and prepared in a moment.
MANY_PARTS = 40
# Timing a convolution in its three directions takes 0.3 s, and saves some milliseconds of a step.
_STEPS_FOR_A_CONVOLUTION = 50

_Call = Callable[..., Any]
_Swap = tuple[Any, str, Callable[[int | None], _Call]]


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
    """Return a replacement of `layer.call` for a layer with `has_slow_gradient`."""
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


@dataclass(frozen=True)
class FastKernels:
    """The faster operations for one model."""

    names: tuple[str, ...]  # of what they compute, in order, such as "convolution"
    swaps: tuple[_Swap, ...]  # object, name of the method, function from a batch's rows to the replacement
    times: bool  # whether a trace times convolutions of new shapes, or leaves them to TensorFlow

    def around(self, function: _Call, rows: int | None) -> _Call:
        """Return a function of batches of `rows` rows that does the same, traced on the faster operations."""

        def run(*arguments: Any) -> Any:
            with contextlib.ExitStack() as patches:
                if not self.times:
                    patches.enter_context(selection.only_known())
                for owner, method, make in self.swaps:
                    _swap(patches, owner, method, make(rows))
                return function(*arguments)

        return run


def find_kernels(
    model: keras.Model, *, build: bool = False, times: bool = True, long: bool = True
) -> FastKernels | None:
    """Return the faster operations for a built model, or None if they would change nothing.

    With `build` the convolution may be compiled; without `times`, only shapes that have been timed run on it.
    A run that is not `long` keeps Keras's last bit, unless the graph of many parts becomes half as large.
    """
    swaps = _layers(model, build=build)
    weights = sum(math.prod(variable.shape) for variable in model.trainable_variables)
    optimizer = keras_optimizers.inner_optimizer(model.optimizer)
    if (swaps or not long or weights >= _MANY_WEIGHTS) and _is_stock_adam(optimizer):
        swaps["Adam"] = [(optimizer, "update_step", lambda _: _adam(optimizer))]
    if not long:
        updates = len(model.trainable_variables) if "Adam" in swaps else 0
        if updates + len(swaps.get("normalization", ())) < MANY_PARTS:
            return None
    return FastKernels(tuple(swaps), tuple(itertools.chain(*swaps.values())), times) if swaps else None


def steps_that_pay_timing(model: keras.Model) -> int:
    """Return from how many steps on it pays to time the convolutions of a model."""
    return _STEPS_FOR_A_CONVOLUTION * len(_float32_convolutions(model))


def _layers(model: keras.Model, *, build: bool) -> dict[str, list[_Swap]]:
    layers = keras_models.flat_layers(model)
    # Keras's own has another second derivative, which a gradient penalty in the loss would take: the variance
    # of `tf.nn.moments` is that around a constant.
    of_first_order = layers if keras_models.is_stock_method(model.compute_loss) else ()
    normalizing = filter(_is_stock_normalization, of_first_order)
    methods: dict[str, tuple[Iterable[keras.Layer], str, Callable[[Any, int | None], _Call]]] = {
        "normalization": (normalizing, "call", lambda it, _: _normalization(it)),
    }
    if build or library.is_built():
        slow = filter(has_slow_gradient, layers)
        methods = {
            "convolution": (_float32_convolutions(model), "call", _convolution),
            "depthwise convolution": (slow, "call", lambda it, _: convolve_depthwise(it)),
            **methods,
        }
    swaps: dict[str, list[_Swap]] = {
        name: [(layer, method, functools.partial(make, layer)) for layer in kind]
        for name, (kind, method, make) in methods.items()
    }
    return {name: of_layers for name, of_layers in swaps.items() if of_layers}


def _swap(patches: contextlib.ExitStack, owner: Any, method: str, fast: _Call) -> None:
    """Replace a method of an object for this thread only, until `patches` are undone."""
    stock, thread = getattr(owner, method), threading.get_ident()

    @functools.wraps(stock)
    def call(*arguments: Any, **options: Any) -> Any:
        function = fast if threading.get_ident() == thread else stock
        return function(*arguments, **options)

    keras_models.set_until(patches, owner, method, call)


def _float32_convolutions(model: keras.Model) -> list[keras.layers.Conv2D]:
    return [layer for layer in stock_convolutions(model) if layer.compute_dtype == "float32"]


def _convolution(layer: keras.layers.Conv2D, rows: int | None) -> _Call:
    return functools.partial(operation.convolve, layer, batch_hint=rows)


def _is_stock_normalization(layer: keras.Layer) -> bool:
    return (
        type(layer) is keras.layers.BatchNormalization
        and not {"call", "_moments"} & set(vars(layer))
        and layer.compute_dtype == "float32"
        and not layer.synchronized
        and not getattr(layer, "renorm", False)
    )


def _normalization(layer: keras.layers.BatchNormalization) -> _Call:
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


def _adam(optimizer: keras.optimizers.Adam) -> _Call:
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
    """Update a variable and its moments as `optimizer.update_step` does without `amsgrad`, in one pass."""
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
