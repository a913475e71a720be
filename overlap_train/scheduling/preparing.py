"""From a Keras model to one that the scheduler can serve: split, compiled, profiled, merged.

Everything is traced in `compile_segments`, on one thread at a time (tracing shares Python state); workers
only call what was traced.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import math
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from overlap_train._support.arguments import (
    require_choice,
    require_count,
    require_flag,
    require_items,
    require_real,
    short_repr,
)
from overlap_train.scheduling.calls import constant_pieces
from overlap_train.scheduling.costs import CostModel, Costs, check_costs
from overlap_train.scheduling.graph import REQUEST, Device, Layer, LayerGraph, Platform, Port, Run
from overlap_train.scheduling.models import SplitModel, split_model, tracing
from overlap_train.scheduling.segments import Segments, choose_segments, merge_layers, worth_cutting
from overlap_train.scheduling.service import Model
from overlap_train.zero_copy import as_tensor

__all__ = ["ModelBuilder", "compile_segments", "profile_layers", "tensorflow_platform"]


_log = logging.getLogger(__name__)

# For dimensions that the model leaves open, in the order in which they are tried.
_SIZES = (32, 128, 512, 8, 1)
_MOST_ELEMENTS = 1 << 22


def tensorflow_platform(devices: Sequence[Device] | None = None) -> Platform:
    """A platform of TensorFlow devices.

    Unless given, these are every GPU with one slot and one CPU device with a slot for each core.
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
        raise ValueError(f"devices: TensorFlow has no device {short_repr(missing)}; it has {sorted(logical)}")
    return Platform(tuple(devices))


def compile_segments(
    split: SplitModel, segments: Segments, platform: Platform, *, constant_weights: bool = False
) -> LayerGraph:
    """The graph of segments with a traced function for each device that may run them.

    With `constant_weights` TensorFlow folds and prepares the present weights once, not in every call. Each
    device has another copy of them, and so do the pieces.
    """

    def runs(number: int, reads: Sequence[Port], whole: bool) -> dict[str, Run]:
        function = split.function(reads, segments.members[number], segments.outputs[number], whole)
        specs = [split.spec(port) for port in reads]
        return {
            device.name: _Compiled(
                function, specs, device, constant_weights=constant_weights, varies=split.varies
            )
            for device in platform.devices
        }

    layers = []
    with tracing, constant_pieces() if constant_weights else contextlib.nullcontext():
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

    Layers are run in order on real tensors, so that data-dependent costs such as denormals are right. Sizes
    that the model leaves open are tried until the layers run with one of them. If none works on a device,
    nothing is measured there: requests may bring inputs of another kind. Variables that the layers write are
    restored.
    """
    samples: list[tuple[Layer, Device, float]] = []
    values = [(variable, variable.numpy()) for variable in _written_variables(graph)]
    for device in platform.devices:
        for size in _example_sizes(graph, device):
            try:
                samples += _measure_layers(graph, device, size, repeats)
            except (
                tf.errors.InvalidArgumentError,
                tf.errors.OutOfRangeError,
                tf.errors.UnknownError,
            ) as error:
                _log.debug("%s does not run on %s with sizes of %d: %s", graph.name, device.name, size, error)
            else:
                break
        else:
            _log.info("%s ran with no example on %s; its times are not known yet", graph.name, device.name)
    for variable, value in values:
        variable.assign(value)
    return samples


def _written_variables(graph: LayerGraph) -> list[tf.Variable]:
    """Return the variables of the layers that write any, each once."""
    forms = [form for layer in graph.layers for form in (layer, layer.whole) if form is not None]
    runs: list[Any] = [run for form in forms for run in form.runs.values()]
    return list({id(variable): variable for run in runs for variable in run.written}.values())


def _example_sizes(graph: LayerGraph, device: Device) -> Sequence[int]:
    """Return the sizes to try for open dimensions; one if there are none."""
    shapes = [
        spec.shape.as_list()[1:]
        for layer in graph.layers
        for port, spec in zip(layer.inputs, layer.runs[device.name].specs, strict=True)  # type: ignore[attr-defined]
        if port.source == REQUEST
    ]
    if not any(None in shape for shape in shapes):
        return (1,)
    return [
        n for n in _SIZES if max(math.prod(size or n for size in s) for s in shapes) <= _MOST_ELEMENTS
    ] or (1,)


def _measure_layers(
    graph: LayerGraph, device: Device, size: int, repeats: int
) -> list[tuple[Layer, Device, float]]:
    """Measure each layer on a device, with `size` for every dimension that is open."""
    samples = []
    tensors: dict[Any, Any] = {}
    readers = _last_readers(graph)
    for index, layer in enumerate(graph.layers):
        outputs, seconds = _time_layer(layer, device, tensors, size, repeats)
        samples.append((layer, device, seconds))
        if layer.whole is not None:
            samples.append((layer.whole, device, _time_layer(layer.whole, device, tensors, size, repeats)[1]))
        tensors.update({port: outputs[port.index] for port in readers if port.source == index})
        for port in [port for port, last in readers.items() if last == index]:
            tensors.pop(port, None)
    return samples


def _time_layer(
    layer: Layer, device: Device, tensors: Mapping[Port, Any], size: int, repeats: int
) -> tuple[Sequence[Any], float]:
    run = layer.runs[device.name]
    specs = run.specs  # type: ignore[attr-defined]
    inputs = tuple(
        tensors[port] if port in tensors else _example(spec, size)
        for port, spec in zip(layer.inputs, specs, strict=True)
    )
    outputs, times = run(inputs), []
    for _ in range(repeats):
        began = time.perf_counter()
        outputs = run(inputs)
        times.append(time.perf_counter() - began)
    return outputs, min(times)


class _Compiled:
    """A function traced for one device, whose results exist when it returns."""

    def __init__(
        self,
        python_function: Callable[..., list[Any]],
        specs: Sequence[tf.TensorSpec],
        device: Device,
        *,
        constant_weights: bool,
        varies: bool,
    ) -> None:
        self._python_function = python_function
        self._device = f"/{device.name}"
        self._asynchronous = device.name.startswith("GPU")
        self._constant_weights = constant_weights
        self._varies = varies
        self._variants: dict[tuple[Any, ...], Callable[..., Any]] = {}
        self.specs = tuple(specs)
        self._function = self._trace(self.specs)
        self.written: tuple[tf.Variable, ...] = (
            tuple(self._function.variables) if _writes(self._function) else ()
        )

    def __call__(self, inputs: tuple[Any, ...]) -> list[Any]:
        function = self._variant(inputs) if self._varies else self._function
        outputs = list(function(*(value for value in inputs if value is not None)))
        if self._asynchronous:
            # The last output is a number on the host that depends on all others: reading it waits for them.
            outputs.pop().numpy()
        return outputs

    def _variant(self, inputs: tuple[Any, ...]) -> Callable[..., Any]:
        """Return the function for the inputs that are present; it is traced on first use."""
        dtypes = tuple(None if value is None else value.dtype for value in inputs)
        if dtypes == tuple(spec.dtype for spec in self.specs):
            return self._function
        with tracing:
            if dtypes not in self._variants:
                self._variants[dtypes] = self._trace(
                    [
                        None if dtype is None else tf.TensorSpec(spec.shape, dtype)
                        for spec, dtype in zip(self.specs, dtypes, strict=True)
                    ]
                )
            return self._variants[dtypes]

    def _trace(self, specs: Sequence[tf.TensorSpec | None]) -> Any:
        def on_device(*tensors: Any) -> list[Any]:
            remaining = iter(tensors)
            args = [None if spec is None else next(remaining) for spec in specs]
            with tf.device(self._device):
                outputs = [tf.identity(output) for output in self._python_function(*args)]
                return [*outputs, _host_number(outputs)] if self._asynchronous else outputs

        present = [spec for spec in specs if spec is not None]
        concrete = tf.function(on_device, autograph=False).get_concrete_function(*present)
        if self._constant_weights and not _writes(concrete):
            from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

            concrete = convert_variables_to_constants_v2(concrete)
        return concrete


# Operations that write a variable; the state of a `tf.random.Generator` is one.
_WRITES = re.compile(r"Assign|ResourceScatter|ResourceStridedSliceAssign|ResourceApply|Rng|Stateful(?!Part)")


def _writes(concrete: Any) -> bool:
    """Whether a traced function writes variables, as layers do that count or draw in inference."""
    if not concrete.variables:
        return False
    definition = concrete.graph.as_graph_def()
    nodes = itertools.chain(definition.node, *(f.node_def for f in definition.library.function))
    return any(_WRITES.match(node.op) for node in nodes)


def _host_number(outputs: Sequence[tf.Tensor]) -> tf.Tensor:
    """Return a number on the host that depends on all outputs; text is on the host anyway."""
    numbers = [output for output in outputs if output.dtype != tf.string]
    firsts = [tf.cast(tf.reshape(number, [-1])[:1], tf.float32) for number in numbers]
    with tf.device("/CPU:0"):
        sums = [tf.reduce_sum(tf.identity(first)) for first in firsts]
        return tf.add_n([tf.constant(0.0), *sums])


def _last_readers(graph: LayerGraph) -> dict[Any, int]:
    return {
        port: index for index, layer in enumerate(graph.layers) for port in layer.ports() if port.source >= 0
    }


def _example(spec: tf.TensorSpec, size: int) -> tf.Tensor:
    batch, *shape = spec.shape.as_list() or [1]
    sizes = [batch or 1, *(length or size for length in shape)] if spec.shape.rank else []
    if spec.dtype == tf.string:
        return tf.fill(sizes, "")
    values = np.random.default_rng(0).random(sizes)
    return tf.constant(np.asarray(values, spec.dtype.as_numpy_dtype))


_MOST_PIECES = 4096

_SEGMENTS = ("auto", "layers", "whole")


class ModelBuilder:
    """Prepares models for the devices of a platform; see `MultiModelScheduler` for the options."""

    def __init__(
        self,
        devices: Platform | Sequence[Device] | None,
        costs: Costs | None,
        *,
        segments: str | int = "auto",
        cut: int = 1,
        longest_segment_s: float = float("inf"),
        constant_weights: bool = False,
        profile: bool | None = None,
        zero_copy: bool = False,
    ) -> None:
        self._segments = _checked_segments(segments)
        self._cut = require_count("cut", cut, minimum=1, maximum=_MOST_PIECES)
        self._longest_s = require_real("longest_segment_s", longest_segment_s, minimum=0, infinite=True)
        self._constant_weights = require_flag("constant_weights", constant_weights)
        if profile is not None:
            profile = require_flag("profile", profile, expected="True, False or None")
        self._as_tensor = _in_place_tensor if require_flag("zero_copy", zero_copy) else _host_tensor
        if self._cut > 1 and self._segments not in ("auto", "layers"):
            raise ValueError(
                f"cut={self._cut} needs segments='auto' or 'layers'; {self._segments!r} would put the pieces "
                "together again"
            )
        check_costs(costs)
        self.platform = devices if isinstance(devices, Platform) else tensorflow_platform(devices)
        self.costs = costs if costs is not None else CostModel()
        kinds = {device.kind for device in self.platform.devices}
        gains = costs is None and (len(kinds) > 1 or self._cut > 1)
        self._profile = gains if profile is None else profile

    def build(
        self,
        name: str,
        model: Any,
        max_pending: int,
        max_batch: int,
        *,
        input_specs: Sequence[tf.TensorSpec] = (),
    ) -> Model:
        """Compile a model; takes seconds for a large one."""
        cut = functools.partial(split_model, model, name=name, input_specs=input_specs, cut=self._cut)
        split = cut()
        single = None
        if self._profile and isinstance(self.costs, CostModel):
            single = self._profile_single(split, self.costs)
            only = worth_cutting(split.graph, self.platform, self.costs)
            if len(only) < len(set(split.graph.joins.values())):
                split = cut(only=only)
                single = None
        graph = single if single is not None and self._segments == "layers" else self._compile(split)
        # An output for the whole batch cannot be divided among the requests in it.
        most = max_batch if split.keeps_rows else 1
        return Model(
            name, graph, functools.partial(split.inputs.flatten, name), split.pack, max_pending, most
        )

    def tensors(self, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        """Arrays as tensors on the host; in place with `zero_copy`. None stays."""
        return tuple(None if array is None else self._as_tensor(array) for array in arrays)

    def _profile_single(self, split: SplitModel, costs: CostModel) -> LayerGraph:
        graph = self._merge(split, _equal_groups(len(split.graph), len(split.graph)))
        costs.add_profile(profile_layers(graph, self.platform))
        return graph

    def _merge(self, split: SplitModel, groups: Sequence[range]) -> LayerGraph:
        segments = merge_layers(split.graph, groups)
        return compile_segments(split, segments, self.platform, constant_weights=self._constant_weights)

    def _compile(self, split: SplitModel) -> LayerGraph:
        count = len(split.graph)
        if self._segments == "auto":
            groups = choose_segments(split.graph, self.platform, self.costs, longest_s=self._longest_s)
        else:
            lengths = {"whole": 1, "layers": count}
            segments = lengths[self._segments] if isinstance(self._segments, str) else self._segments
            groups = _equal_groups(count, min(segments, count))
        graph = self._merge(split, groups)
        # The first call of a function optimises it, which takes seconds: not in the first request.
        samples = profile_layers(graph, self.platform, repeats=3 if self._profile else 1)
        if isinstance(self.costs, CostModel):
            self.costs.add_profile(samples)
        return graph


def _checked_segments(segments: object) -> str | int:
    if isinstance(segments, str):
        choice: str = require_choice("segments", segments, _SEGMENTS)
        return choice
    expected = f"one of {', '.join(map(repr, _SEGMENTS))} or an integer"
    return require_count("segments", segments, minimum=1, expected=expected)


def _equal_groups(layers: int, count: int) -> list[range]:
    """Divide layers into groups of as equal a length as can be."""
    bounds = [round(layers * number / count) for number in range(count + 1)]
    return [range(begin, end) for begin, end in itertools.pairwise(bounds)]


def _host_tensor(array: Any) -> tf.Tensor:
    # Without the scope TensorFlow would put it on a GPU, whether or not the first segment runs there.
    with tf.device("/CPU:0"):
        return tf.constant(array)


def _in_place_tensor(array: Any) -> tf.Tensor:
    try:
        return as_tensor(array)
    except (ValueError, TypeError, BufferError):
        return _host_tensor(array)
