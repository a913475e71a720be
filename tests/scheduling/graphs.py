"""Random graphs, platforms and costs for the scheduling tests, and what runs them."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
import tensorflow as tf

from overlap_train.errors import SchedulerClosedError
from overlap_train.scheduling import Device, Platform, Policy, Transfer
from overlap_train.scheduling.engine import Engine
from overlap_train.scheduling.graph import Layer, LayerGraph, Port, Request, Work
from overlap_train.scheduling.preparing import compile_segments
from overlap_train.scheduling.segments import merge_layers
from tests.devices import tolerance

CLOSE = tolerance(1e-5, on_gpu=1e-4)  # a GPU forms the sums of a part in another order


def layer(name, *inputs, outputs=(0,)):
    return Layer(name, Work("conv"), tuple(inputs), outputs)


CORES = Platform((Device("cpu", "cpu", slots=4), Device("gpu", "gpu")))


def chain(name, *lengths):
    """Layers named after how many milliseconds they take."""
    layers = [
        Layer(f"{name}/{number}:{ms}", Work("conv"), (Port(number - 1),)) for number, ms in enumerate(lengths)
    ]
    return LayerGraph(layers, [Port(len(lengths) - 1)], name=name)


class Tensor:
    """What a layer makes, and whose end can be seen."""


class Movable(Policy):
    """Everything on one device, from which it may be taken."""

    name = "movable"

    moves = True

    def select(self, request, index, places, board):
        return board.platform["cpu"]


class Anywhere(Policy):
    """Every layer on a device drawn at random: the most crossings."""

    name = "anywhere"

    def __init__(self, seed=0):
        self._rng = random.Random(seed)

    def select(self, request, index, places, board):
        return self._rng.choice(board.platform.devices)


KINDS = ("conv", "norm", "activation", "pool", "dense", "merge")


def random_graph(rng: random.Random, size: int, *, name: str = "network") -> LayerGraph:
    """A connected graph of `size` layers with branches, skips, two outputs for some layers."""
    layers: list[Layer] = []
    for index in range(size):
        reads = {index - 1} if rng.random() < 0.6 else {rng.randrange(-1, index)}
        if rng.random() < 0.4:
            reads.add(rng.randrange(-1, index))
        ports = tuple(
            Port(source, rng.randrange(1 if source < 0 else len(layers[source].output_bytes)))
            for source in sorted(reads)
        )
        outputs = tuple(rng.randrange(1, 4) * 10**6 for _ in range(rng.choice((1, 1, 1, 2))))
        layers.append(Layer(f"{name}/{index}", Work(rng.choice(KINDS)), ports, outputs))
    unread = [i for i in range(size) if not any(p.source == i for layer in layers for p in layer.inputs)]
    return LayerGraph(layers, [Port(i) for i in unread], input_bytes=(10**6,), name=name)


def random_platform(rng: random.Random) -> Platform:
    link = Transfer(rng.choice((0.0, 1e-4, 1e-3)), rng.choice((1e9, 1e10, float("inf"))))
    return Platform(
        (Device("cpu", "cpu", slots=rng.choice((1, 2, 8))), Device("gpu", "gpu")),
        {("cpu", "gpu"): link, ("gpu", "cpu"): link},
    )


def random_costs(rng: random.Random, *graphs: LayerGraph) -> Callable[[Layer, Device], float]:
    """Milliseconds; convolutions are slow on the CPU, other layers about as fast as on the GPU."""
    table = {}
    for graph in graphs:
        for layer in (*graph.layers, *(graph.pieces.layers if graph.pieces else ())):
            gpu_s = rng.uniform(1, 5) * 1e-3
            slower = rng.uniform(2, 10) if layer.work.kind == "conv" else rng.uniform(0.3, 2)
            table[layer.name] = {"gpu": gpu_s, "cpu": gpu_s * slower}
    return lambda layer, device: table[layer.name][device.kind]


def with_pieces(graph: LayerGraph, count: int = 3) -> LayerGraph:
    """The graph, which runs on idle cores with each layer as `count` layers side by side and a join."""
    layers: list[Layer] = []
    home: list[int] = []
    for layer in graph.layers:
        reads = tuple(p if p.source < 0 else Port(home[p.source], p.index) for p in layer.inputs)
        first = len(layers)
        layers += [Layer(f"{layer.name}/{n}", layer.work, reads, alone=True) for n in range(count)]
        joined = tuple(Port(first + n) for n in range(count))
        layers.append(replace(layer, name=f"{layer.name}/join", inputs=joined))
        home.append(len(layers) - 1)
    outputs = [Port(home[port.source], port.index) for port in graph.outputs]
    sizes = {"input_bytes": graph.input_bytes, "name": graph.name}
    pieces = LayerGraph(layers, outputs, **sizes)
    return LayerGraph(graph.layers, graph.outputs, **sizes, pieces=pieces)


def computed(split, groups, *inputs):
    """What a model that was split makes of inputs on one core, with these groups of its calls as segments."""
    graph = compile_segments(split, merge_layers(split.graph, groups), Platform((Device("CPU:0"),)))
    tensors = {Port(-1, n): tf.constant(x) for n, x in enumerate(inputs)}
    for index, layer in enumerate(graph.layers):
        outputs = layer.runs["CPU:0"](tuple(tensors[port] for port in layer.inputs))
        tensors.update({Port(index, n): y for n, y in enumerate(outputs)})
    return [tensors[port].numpy() for port in graph.outputs]


class Watch:
    """Waits until a number of requests have ended."""

    def __init__(self, count):
        self.results = {}
        self.ended = Counter()
        self._left = count
        self._changed = threading.Condition()

    def __call__(self, request, outputs, error):
        with self._changed:
            self.results[request.number] = (outputs, error)
            self.ended[request.number] += 1
            self._left -= 1
            self._changed.notify_all()

    def wait(self):
        with self._changed:
            assert self._changed.wait_for(lambda: self._left <= 0, 60), "requests did not end"


def served(platform, policy, graphs, x=0.0, **options):
    """Serves one request of each graph; returns what came of each."""
    watch = Watch(len(graphs))
    with Engine(platform, policy, **options) as engine:
        for number, graph in enumerate(graphs):
            engine.start(Request(number, graph, (x,), on_done=watch))
        watch.wait()
        assert not engine._distributor.controllers
    engine.close()
    with pytest.raises(SchedulerClosedError):
        engine.start(Request(99, graphs[0], (x,)))
    assert set(watch.ended.values()) == {1}
    return watch.results


def optimum_s(graph: LayerGraph, platform: Platform, true_s, bound_s: float) -> float:
    """The shortest makespan of a request alone, by branch and bound; `bound_s` if none is shorter."""
    devices, size = platform.devices, len(graph)
    run_s = [[true_s(layer, device) for device in devices] for layer in graph.layers]
    tails_s = [min(row) for row in run_s]
    for index in reversed(range(size)):
        tails_s[index] += max((tails_s[after] for after in graph.successors[index]), default=0.0)
    places, ends_s = [platform.home] * size, [0.0] * size
    free_s = [[0.0] * device.slots for device in devices]

    def best(done: frozenset, latest_s: float, bound_s: float) -> float:
        if len(done) == size:
            return min(bound_s, latest_s)
        ready = [i for i in range(size) if i not in done and done.issuperset(graph.predecessors[i])]
        for index in ready:
            ready_s = max((ends_s[source] for source in graph.predecessors[index]), default=0.0)
            for number, device in enumerate(devices):
                slots = free_s[number]
                slot = min(range(len(slots)), key=slots.__getitem__)
                brought_s = sum(
                    platform.transfer_s(platform.home if s < 0 else places[s], device.name, size_bytes)
                    for s, size_bytes in graph.edge_bytes(graph.layers[index])
                )
                was_s, end_s = slots[slot], max(slots[slot], ready_s) + brought_s + run_s[index][number]
                if end_s + tails_s[index] - min(run_s[index]) < bound_s:
                    places[index], ends_s[index], slots[slot] = device.name, end_s, end_s
                    bound_s = best(done | {index}, max(latest_s, end_s), bound_s)
                    slots[slot] = was_s
        return bound_s

    return best(frozenset(), 0.0, bound_s)
