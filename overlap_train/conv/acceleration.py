"""`accelerate`: our convolution in a model that already exists.

The layers stay what they are, instances of keras.layers.Conv2D with their weights, names and places in the
graph; only their `call` is replaced, on the instance. So Functional, Sequential and subclassed models are all
the same here, optimizers and checkpoints keep fitting, and what is saved is a plain Keras model that loads
without this package.
"""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass, field

import keras
import tensorflow as tf

from overlap_train._keras import models as keras_models
from overlap_train._support.arguments import require_count
from overlap_train._support.fit_arguments import require_verbosity
from overlap_train._support.imports import require_tensorflow
from overlap_train._support.printing import printable
from overlap_train.conv import library, operation
from overlap_train.conv.convolution import Convolution
from overlap_train.conv.selection import Timing, format_report

_MARK = "_overlap_train_tiled_call"


@dataclass(frozen=True)
class AccelerationReport:
    """What `accelerate` did to a model.

    Attributes:
        swapped: names of the layers that now run on our operation.
        skipped: names of the Conv2D layers left alone, with the reason.
        timings: what was measured for each swapped layer whose shape was known; the others are timed when
            they are traced, and `overlap_train.conv.report()` has them all.
    """

    swapped: tuple[str, ...]
    skipped: dict[str, str] = field(default_factory=dict)
    timings: dict[str, tuple[Timing, ...]] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [
            f"{len(self.swapped)} Conv2D layers on overlap_train's convolution, "
            f"{len(self.skipped)} left alone"
        ]
        lines += [f"  {name}: {reason}" for name, reason in self.skipped.items()]
        for name in self.swapped:
            rows = self.timings.get(name)
            lines.append(f"{name}: timed when first traced" if not rows else f"{name}\n{format_report(rows)}")
        return "\n".join(lines)


def accelerate(model: keras.Model, *, batch_size: int | None = None, verbose: int = 1) -> keras.Model:
    """Make every Conv2D layer of a model, nested ones included, run on `tiled_conv2d`.

    Layers that the operation cannot compute (dilated, grouped, channels_first, half precision), and
    subclasses of Conv2D with a custom `call`, are not changed. Calling it again is harmless. Do not call it
    while the model trains.

    Args:
        model: the model, changed in place; built or not, compiled or not.
        batch_size: times layers of known image size now, with batches of this size, so that the report shows
            what each gains. None times them in the first training step.
        verbose: 1 prints a report of the changed layers, 0 does not.

    Returns:
        The same model.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: `batch_size` is below 1, or the model is compiled with jit_compile=True: XLA cannot run
            custom operations.
        RuntimeError: Keras runs on another backend than TensorFlow.
    """
    require_tensorflow()
    keras_models.require_model(model)
    verbose = require_verbosity(verbose)
    if batch_size is not None:
        batch_size = require_count("batch_size", batch_size, minimum=1, expected="an integer or None")
    if getattr(model, "jit_compile", False) is True:
        raise ValueError(
            "accelerate() cannot work under XLA, and the model has jit_compile=True: "
            "compile it with jit_compile=False"
        )
    swapped: list[str] = []
    skipped: dict[str, str] = {}
    timings: dict[str, tuple[Timing, ...]] = {}
    for layer in _convolutions(model):
        reason = _reason_to_skip(layer)
        if reason is not None:
            skipped[layer.path or layer.name] = reason
            continue
        _swap_call(layer, batch_size)
        swapped.append(layer.path or layer.name)
        if batch_size is not None and library.is_available():
            timings[swapped[-1]] = _time_layer(layer, batch_size)
    # Functions traced before hold the old operations.
    for function in ("train_function", "test_function", "predict_function"):
        if getattr(model, function, None) is not None:
            setattr(model, function, None)
    result = AccelerationReport(tuple(swapped), skipped, timings)
    object.__setattr__(model, "_overlap_train_acceleration", result)
    if verbose:
        print(printable(str(result), sys.stdout))
    return model


def acceleration_report(model: keras.Model) -> AccelerationReport:
    """Return what `accelerate` did to `model`."""
    report: AccelerationReport = model._overlap_train_acceleration
    return report


def stock_convolutions(model: keras.Model) -> list[keras.layers.Conv2D]:
    """Return the Conv2D layers that `accelerate` would swap and has not."""
    return [
        layer
        for layer in _convolutions(model)
        if _reason_to_skip(layer) is None and not getattr(layer, _MARK, False)
    ]


def _convolutions(model: keras.Model) -> list[keras.layers.Conv2D]:
    layers = model._flatten_layers(include_self=False, recursive=True)
    return [layer for layer in layers if isinstance(layer, keras.layers.Conv2D)]


def _reason_to_skip(layer: keras.layers.Conv2D) -> str | None:
    if isinstance(layer, operation.TiledConv2D):
        return "already a TiledConv2D"
    base = keras.layers.Conv2D
    if type(layer).call is not base.call or type(layer).convolution_op is not base.convolution_op:
        return f"{type(layer).__name__} computes by itself"
    if not getattr(layer, _MARK, False) and {"call", "convolution_op"} & set(vars(layer)):
        return "has a call of its own"
    if layer.compute_dtype not in ("float32", "float64"):
        return f"computes in {layer.compute_dtype}"
    return operation.unsupported(layer)


def _swap_call(layer: keras.layers.Conv2D, batch_size: int | None) -> None:
    @functools.wraps(type(layer).call)
    def call(inputs: tf.Tensor) -> tf.Tensor:
        return operation.convolve(layer, inputs, batch_hint=batch_size)

    # Past Keras's attribute tracking, which has nothing to track here.
    object.__setattr__(layer, "call", call)
    object.__setattr__(layer, _MARK, True)


def _time_layer(layer: keras.layers.Conv2D, batch_size: int) -> tuple[Timing, ...]:
    """Time the shapes at which a Functional or Sequential model calls the layer; none in a subclassed one."""
    rows: list[Timing] = []
    convolution = Convolution(
        tuple(layer.strides),
        layer.padding.upper(),
        relu=layer.activation is keras.activations.relu,
        bias=layer.use_bias,
    )
    for node in getattr(layer, "_inbound_nodes", []):
        shape = tuple(node.input_tensors[0].shape)
        if layer.built and None not in shape[1:]:
            x, filters = tf.TensorShape((batch_size, *shape[1:])), tf.TensorShape(layer.kernel.shape)
            rows += convolution.timings(tf.as_dtype(layer.compute_dtype), x, filters)
    return tuple(rows)
