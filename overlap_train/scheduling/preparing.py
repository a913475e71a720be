"""From a Keras model to one that the scheduler can serve: split, compiled, profiled, merged.

Everything is traced in `compile_segments`, on one thread at a time (tracing shares Python state); workers
only call what was traced.
"""

from __future__ import annotations

import concurrent.futures
import functools
import itertools
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf

from overlap_train._support.arguments import (
    require_count,
    require_flag,
    require_instance,
    require_items,
    short_repr,
)
from overlap_train.conv.library import count_runs
from overlap_train.scheduling.accounts import RunTimes
from overlap_train.scheduling.costs import CostModel
from overlap_train.scheduling.graph import Device, Layer, LayerGraph, Platform, Port, Run
from overlap_train.scheduling.models import SplitModel, split_model, tracing
from overlap_train.scheduling.segments import (
    Segments,
    choose_segments,
    merge_layers,
    piece_shares,
    single_layers,
    worth_cutting,
)
from overlap_train.scheduling.service import Model
from overlap_train.zero_copy import as_tensor

_log = logging.getLogger(__name__)

# For dimensions that the model leaves open, in the order in which they are tried.
_SIZES = (32, 128)


def tensorflow_platform(devices: Sequence[Device] | None = None) -> Platform:
    """A platform of these devices, or of every GPU and a CPU with a slot for each core."""
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


def compile_segments(split: SplitModel, segments: Segments, platform: Platform) -> LayerGraph:
    """The graph of segments with a traced function for each device that may run them."""

    def runs(number: int) -> dict[str, Run]:
        reads = segments.inputs[number]
        function = split.function(reads, segments.members[number], segments.outputs[number])
        specs = [split.spec(port) for port in reads]
        return {device.name: _Compiled(function, specs, device) for device in platform.devices}

    graph = segments.graph
    with tracing:
        layers = [replace(layer, runs=runs(number)) for number, layer in enumerate(graph.layers)]
    return LayerGraph(layers, graph.outputs, input_bytes=graph.input_bytes, name=graph.name)


_Sample = tuple[Layer, Device, float]


@dataclass(frozen=True)
class Profile:
    """What one run of a graph on one device gave: the seconds of each layer, and the outputs."""

    samples: tuple[_Sample, ...]
    outputs: tuple[Any, ...]

    @property
    def total_s(self) -> float:
        """The seconds of all layers."""
        return sum(seconds for _, _, seconds in self.samples)


def profile_layers(graph: LayerGraph, device: Device, *, repeats: int = 3, batch: int = 1) -> Profile | None:
    """Measure each compiled layer on a device: the smallest of `repeats` times, after one warm-up.

    Layers are run in order on real tensors, so that data-dependent costs such as denormals are right. Sizes
    that the model leaves open are tried until the layers run with one of them. None works if the requests are
    to bring inputs of another kind: then None is returned. Variables that the layers write are restored.
    """
    values = [(variable, variable.numpy()) for variable in written_variables(graph)]
    profile = None
    for size in _SIZES:
        try:
            profile = _measure_layers(graph, device, size, repeats, batch)
            break
        except (tf.errors.InvalidArgumentError, tf.errors.OutOfRangeError, tf.errors.UnknownError) as error:
            _log.debug("%s does not run on %s with sizes of %d: %s", graph.name, device.name, size, error)
    else:
        _log.info("%s ran with no example on %s; its times are not known yet", graph.name, device.name)
    for variable, value in values:
        variable.assign(value)
    return profile


def profile_beside(graph: LayerGraph, device: Device, *, batch: int = 1) -> Profile | None:
    """Measure each layer as `profile_layers` does, while the device's other slots run the same graph."""
    over, others = threading.Event(), concurrent.futures.ThreadPoolExecutor(device.slots)

    def run() -> None:
        while not over.is_set():
            profile_layers(graph, device, repeats=1, batch=batch)

    with others:
        for _ in range(1, device.slots):
            others.submit(run)  # one that fails leaves its slot idle, which is no error
        try:
            return profile_layers(graph, device, batch=batch)
        except tf.errors.OpError as error:
            _log.info("%s was not measured on every slot of %s: %s", graph.name, device.name, error)
            return None
        finally:
            over.set()


def written_variables(graph: LayerGraph) -> list[tf.Variable]:
    """Return the variables of the layers that write any, each once."""
    runs: list[Any] = [run for layer in graph.layers for run in layer.runs.values()]
    return list({id(variable): variable for run in runs for variable in run.written}.values())


def _measure_layers(graph: LayerGraph, device: Device, size: int, repeats: int, batch: int) -> Profile:
    """Measure each layer on a device, with `size` for every dimension that is open."""
    samples: list[_Sample] = []
    tensors: dict[Port, Any] = {}
    last = {port: index for index, layer in enumerate(graph.layers) for port in layer.inputs}
    for index, layer in enumerate(graph.layers):
        outputs, seconds = _time_layer(layer, device, tensors, (batch, size), repeats)
        samples.append((layer, device, seconds))
        tensors.update({Port(index, number): output for number, output in enumerate(outputs)})
        for port in [port for port in tensors if last.get(port, -1) <= index and port not in graph.outputs]:
            del tensors[port]
    return Profile(tuple(samples), tuple(tensors[port] for port in graph.outputs if port in tensors))


def _time_layer(
    layer: Layer, device: Device, tensors: Mapping[Port, Any], sizes: tuple[int, int], repeats: int
) -> tuple[Sequence[Any], float]:
    run = layer.runs[device.name]
    specs = run.specs  # type: ignore[attr-defined]
    inputs = tuple(
        tensors[port] if port in tensors else _example(spec, *sizes)
        for port, spec in zip(layer.inputs, specs, strict=True)
    )
    outputs, times = run(inputs), []
    for _ in range(repeats):
        began_s = time.perf_counter()
        outputs = run(inputs)
        times.append(time.perf_counter() - began_s)
    return outputs, min(times)


class _Compiled:
    """A function traced for one device, whose results exist when it returns."""

    def __init__(
        self,
        python_function: Callable[..., list[Any]],
        specs: Sequence[tf.TensorSpec],
        device: Device,
    ) -> None:
        self._asynchronous = device.name.startswith("GPU")
        self.specs = tuple(specs)

        def on_device(*tensors: Any) -> list[Any]:
            with tf.device(f"/{device.name}"):
                outputs = [tf.identity(output) for output in python_function(*tensors)]
                return [*outputs, _host_number(outputs)] if self._asynchronous else outputs

        self._function = tf.function(on_device, autograph=False).get_concrete_function(*specs)
        self.written: tuple[tf.Variable, ...] = (
            tuple(self._function.variables) if _writes(self._function) else ()
        )

    def __call__(self, inputs: tuple[Any, ...]) -> list[Any]:
        count_runs(1)
        try:
            outputs = list(self._function(*inputs))
        finally:
            count_runs(-1)
        if self._asynchronous:
            # The last output is a number on the host that depends on all others: reading it waits for them.
            outputs.pop().numpy()
        return outputs


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


def _example(spec: tf.TensorSpec, batch: int, size: int) -> tf.Tensor:
    """Return the same numbers for a specification again, different ones in each row."""
    known, *shape = spec.shape.as_list() or [1]
    sizes = [known or batch, *(length or size for length in shape)] if spec.shape.rank else []
    if spec.dtype == tf.string:
        return tf.fill(sizes, "")
    values = np.random.default_rng(0).random(sizes)
    return tf.constant(np.asarray(values, spec.dtype.as_numpy_dtype))


_MOST_PIECES = 4096

# If the number of examples in a batch is not given, a larger one has to save so much of an example's time.
_LEAST_GAIN = 0.05
_LARGEST_BATCH = 8
_LONGEST_BATCH_S = 0.25


@dataclass(frozen=True)
class _Candidate:
    """A model as it could be run, and its profile on the device that is fastest for it."""

    split: SplitModel
    graph: LayerGraph
    profiles: tuple[Profile, ...]

    @property
    def best(self) -> Profile | None:
        return min(self.profiles, key=lambda profile: profile.total_s, default=None)


class ModelBuilder:
    """Prepares models for the devices of a platform; see `MultiModelScheduler` for the options."""

    def __init__(
        self,
        devices: Platform | Sequence[Device] | None,
        costs: CostModel | None,
        *,
        cut: int = 1,
        fold: bool = True,
        zero_copy: bool = False,
    ) -> None:
        self._cut = require_count("cut", cut, minimum=1, maximum=_MOST_PIECES)
        self._fold = require_flag("fold", fold)
        self._as_tensor = _in_place_tensor if require_flag("zero_copy", zero_copy) else _host_tensor
        if self._cut > 1 and not self._fold:
            raise ValueError(f"cut={self._cut} needs fold=True, as each piece holds its part of the weights")
        require_instance("costs", costs, CostModel)
        self.platform = devices if isinstance(devices, Platform) else tensorflow_platform(devices)
        self.costs = costs if costs is not None else CostModel()
        kinds = {device.kind for device in self.platform.devices}
        self._profile = len(kinds) > 1 or self._cut > 1  # layer by layer: else nothing is to be chosen

    def build(
        self,
        name: str,
        model: Any,
        max_pending: int,
        max_batch: int | None,
        *,
        input_specs: Sequence[tf.TensorSpec] = (),
    ) -> Model:
        """Compile a model; takes seconds for a large one."""
        split_as = functools.partial(split_model, model, name=name, input_specs=input_specs)
        chosen = self._prepare(split_as())
        if self._fold:
            folded_as = functools.partial(split_as, fold=True)
            folded = self._prepare(folded_as())
            if _is_better(folded, chosen):
                split_as, chosen = folded_as, folded
            self._learn(chosen.profiles)
        most, alone_s = self._batches(chosen, max_batch)
        run_times = RunTimes(alone_s, self._beside(chosen, alone_s))
        split, graph = chosen.split, chosen.graph
        if self._cut > 1:
            graph.pieces = self._in_pieces(split_as)
        flatten = functools.partial(split.inputs.flatten, name)
        return Model(name, graph, flatten, split.pack, max_pending, most, run_times=run_times)

    def tensors(self, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        """Arrays as tensors on the host; in place with `zero_copy`."""
        return tuple(map(self._as_tensor, arrays))

    def _prepare(self, split: SplitModel) -> _Candidate:
        """Merge, compile and measure a model."""
        if self._profile:
            self._profile_single(split)
        graph = self._merge(split, choose_segments(split.graph, self.platform, self.costs))
        # The first call of a function optimises it, which takes seconds: not in the first request.
        return _Candidate(split, graph, self._measure(graph))

    def _in_pieces(self, split_as: Callable[..., SplitModel]) -> LayerGraph | None:
        """Compile a model with its large layers cut as the devices are fast, if the profile shows a gain."""
        whole = split_as(cut=lambda layer: ())
        self._profile_single(whole)
        shares = {x.name: piece_shares(x, self.platform, self.costs, self._cut) for x in whole.graph.layers}
        split = split_as(cut=shares.__getitem__)
        self._profile_single(split)
        only = worth_cutting(whole.graph, split.graph, self.platform, self.costs)
        split = split_as(cut=lambda layer: shares[layer] if layer in only else ())
        is_cut = any(layer.alone for layer in split.graph.layers)
        return self._prepare(split).graph if is_cut else None

    def _profile_single(self, split: SplitModel) -> None:
        """Measure every layer by itself."""
        self._measure(self._merge(split, single_layers(split.graph)))

    def _measure(self, graph: LayerGraph) -> tuple[Profile, ...]:
        found = (profile_layers(graph, device) for device in self.platform.devices)
        profiles = tuple(profile for profile in found if profile is not None)
        self._learn(profiles)
        return profiles

    def _learn(self, profiles: Iterable[Profile]) -> None:
        self.costs.add_profile(sample for profile in profiles for sample in profile.samples)

    def _merge(self, split: SplitModel, groups: Sequence[range]) -> LayerGraph:
        segments = merge_layers(split.graph, groups)
        return compile_segments(split, segments, self.platform)

    def _batches(self, chosen: _Candidate, max_batch: int | None) -> tuple[int, dict[int, float]]:
        """Return the most examples to run together, and the seconds of a run by number of examples.

        Unless it is given, the number is doubled while that saves time and each row keeps its result.
        """
        single, run_s = chosen.best, {}
        if single is not None:
            run_s[1] = single.total_s
        if not chosen.split.keeps_rows:  # an output for the whole batch belongs to no single request
            return 1, run_s
        if max_batch is not None or single is None or written_variables(chosen.graph):
            return max_batch or 1, run_s
        best = 1
        while best < _LARGEST_BATCH and run_s[best] <= _LONGEST_BATCH_S:
            double = profile_layers(chosen.graph, single.samples[0][1], batch=2 * best)
            if double is None or double.total_s > 2 * (1 - _LEAST_GAIN) * run_s[best]:
                break
            if not _agree(single.outputs, [output[:1] for output in double.outputs]):
                break
            best *= 2
            run_s[best] = double.total_s
        return best, run_s

    def _beside(self, chosen: _Candidate, alone_s: Mapping[int, float]) -> dict[int, float]:
        """Return the seconds of runs while all cores are busy, by number of examples."""
        if chosen.best is None or self.platform.of_kind("gpu") or written_variables(chosen.graph):
            return {}
        device, found = chosen.best.samples[0][1], {}
        for count, seconds in alone_s.items() if device.slots > 1 else ():
            profile = profile_beside(chosen.graph, device, batch=count)
            found[count] = max(seconds, profile.total_s if profile is not None else 0.0)
        return found


def _is_better(folded: _Candidate, plain: _Candidate) -> bool:
    """Whether a folded model computes the same, up to rounding, in less time."""
    if folded.best is None or plain.best is None:
        return False
    if not _agree(plain.best.outputs, folded.best.outputs):
        _log.warning("%s is run as it is: its folded form computes something else", plain.graph.name)
        return False
    return folded.best.total_s < plain.best.total_s


def _agree(expected: Sequence[Any], computed: Sequence[Any]) -> bool:
    """Whether outputs are equal up to rounding, relative to the largest number."""

    def same(a: Any, b: Any) -> bool:
        if a.dtype.kind not in "fc":
            return bool(np.array_equal(a, b))
        largest = float(np.abs(a[np.isfinite(a)]).max(initial=0.0))
        return np.allclose(a, b, rtol=1e-4, atol=1e-4 * largest, equal_nan=True)

    return all(same(a.numpy(), b.numpy()) for a, b in zip(expected, computed, strict=True))


def _host_tensor(array: Any) -> tf.Tensor:
    # Without the scope TensorFlow would put it on a GPU, whether or not the first segment runs there.
    with tf.device("/CPU:0"):
        return tf.constant(array)


def _in_place_tensor(array: Any) -> tf.Tensor:
    try:
        return as_tensor(array)
    except (ValueError, TypeError, BufferError):
        return _host_tensor(array)
