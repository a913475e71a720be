"""Segments as compiled TensorFlow functions, and how long they take.

Everything is traced in `compile_segments`, on one thread at a time (tracing shares Python state);
workers only call what was traced.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from overlap_train._support.arguments import require_items, shown
from overlap_train.scheduling.graph.cutting import constant_pieces
from overlap_train.scheduling.graph.devices import Device, Platform
from overlap_train.scheduling.graph.layers import Layer, LayerGraph, Port, Run
from overlap_train.scheduling.graph.model_splitting import SplitModel
from overlap_train.scheduling.runtime.segments import Segments

__all__ = ["compile_segments", "profile_layers", "tensorflow_platform"]

_tracing = threading.Lock()


def tensorflow_platform(devices: Sequence[Device] | None = None) -> Platform:
    """A platform of TensorFlow devices.

    Unless given, these are every GPU with one slot and one CPU device with a slot for each core.

    Raises:
        ValueError: a device that TensorFlow does not have.
    """
    logical = {device.name.split("/device:")[-1]: device for device in tf.config.list_logical_devices()}
    if devices is None:
        gpus = [Device(name, "gpu") for name in logical if name.startswith("GPU")]
        devices = [Device("CPU:0", "cpu", slots=len(os.sched_getaffinity(0))), *gpus]
    devices = require_items("devices", devices, Device, expected="a sequence of Device")
    if not devices:
        raise ValueError("devices is empty; name at least one, or pass None")
    missing = [device.name for device in devices if device.name not in logical]
    if missing:
        raise ValueError(f"devices: TensorFlow has no device {shown(missing)}; it has {sorted(logical)}")
    return Platform(tuple(devices))


def compile_segments(
    split: SplitModel, segments: Segments, platform: Platform, *, constant_weights: bool = False
) -> LayerGraph:
    """The graph of segments with a traced function for each device that may run them.

    Args:
        split: the model.
        segments: how it is merged.
        platform: whose device names TensorFlow knows.
        constant_weights: the weights of this moment are built into the functions. TensorFlow then
            folds and prepares them once rather than in every call; later changes of the model's
            weights are not seen, and the weights are held once more for each device, and once more in pieces.
    """

    def runs(number: int, reads: Sequence[Port], whole: bool) -> dict[str, Run]:
        function = split.function(reads, segments.members[number], segments.outputs[number], whole)
        specs = [split.spec(port) for port in reads]
        return {
            device.name: _compile(function, specs, device, constant_weights) for device in platform.devices
        }

    layers = []
    with _tracing, constant_pieces() if constant_weights else contextlib.nullcontext():
        for number, layer in enumerate(segments.graph.layers):
            whole = layer.whole
            if whole is not None:
                whole = replace(whole, runs=runs(number, segments.whole_inputs[number], True))
            layers.append(replace(layer, runs=runs(number, segments.inputs[number], False), whole=whole))
    graph = segments.graph
    return LayerGraph(layers, graph.outputs, input_bytes=graph.input_bytes, name=graph.name)


def profile_layers(
    graph: LayerGraph, platform: Platform, *, repeats: int = 3
) -> list[tuple[Layer, Device, float]]:
    """Measure each compiled layer on each device: the smallest of `repeats` times, after one warm-up.

    Layers are run in order on real tensors, so that data-dependent costs such as denormals are right.
    """
    measured = []
    for device in platform.devices:
        tensors: dict[Any, Any] = {}
        readers = _last_readers(graph)
        for index, layer in enumerate(graph.layers):
            outputs, seconds = _timed(layer, device, tensors, repeats)
            measured.append((layer, device, seconds))
            if layer.whole is not None:
                measured.append((layer.whole, device, _timed(layer.whole, device, tensors, repeats)[1]))
            tensors.update({port: outputs[port.index] for port in readers if port.source == index})
            for port in [port for port, last in readers.items() if last == index]:
                tensors.pop(port, None)
    return measured


def _timed(
    layer: Layer, device: Device, tensors: Mapping[Port, Any], repeats: int
) -> tuple[Sequence[Any], float]:
    run = layer.runs[device.name]
    specs = run.specs  # type: ignore[attr-defined]
    inputs = tuple(
        tensors[port] if port in tensors else _example(spec)
        for port, spec in zip(layer.inputs, specs, strict=True)
    )
    outputs, times = run(inputs), []
    for _ in range(repeats):
        began = time.perf_counter()
        outputs = run(inputs)
        times.append(time.perf_counter() - began)
    return outputs, min(times)


class _Compiled:
    """A traced function on one device, whose results exist when it returns."""

    def __init__(
        self, function: Callable[..., Any], specs: Sequence[tf.TensorSpec], asynchronous: bool
    ) -> None:
        self._function = function
        self._asynchronous = asynchronous
        self.specs = tuple(specs)

    def __call__(self, inputs: tuple[Any, ...]) -> list[Any]:
        outputs = list(self._function(*inputs))
        if self._asynchronous:
            # The last output is a number on the host, made of all others: to read it is to wait for them.
            outputs.pop().numpy()
        return outputs


def _compile(
    function: Callable[..., list[Any]], specs: Sequence[tf.TensorSpec], device: Device, constant_weights: bool
) -> Run:
    asynchronous = device.name.startswith("GPU")

    def placed(*args: Any) -> list[Any]:
        with tf.device(f"/{device.name}"):
            outputs = [tf.identity(output) for output in function(*args)]
            if asynchronous:
                firsts = [tf.cast(tf.reshape(output, [-1])[:1], tf.float32) for output in outputs]
                with tf.device("/CPU:0"):
                    outputs.append(tf.add_n([tf.reduce_sum(tf.identity(first)) for first in firsts]))
        return outputs

    concrete = tf.function(placed, autograph=False).get_concrete_function(*specs)
    if constant_weights:
        from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

        concrete = convert_variables_to_constants_v2(concrete)
    return _Compiled(concrete, specs, asynchronous)


def _last_readers(graph: LayerGraph) -> dict[Any, int]:
    return {
        port: index for index, layer in enumerate(graph.layers) for port in layer.ports() if port.source >= 0
    }


def _example(spec: tf.TensorSpec) -> tf.Tensor:
    shape = [size or 1 for size in spec.shape]
    values = np.random.default_rng(0).random(shape)
    return tf.constant(values.astype(spec.dtype.as_numpy_dtype))
