"""Random graphs, platforms and costs for the scheduling tests."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from overlap_train.scheduling import Device, Platform, Policy, Transfer
from overlap_train.scheduling.graph import Job, Layer, LayerGraph, Port, Request, Work


def layer(name, *inputs, outputs=(0,)):
    return Layer(name, Work("conv"), tuple(inputs), outputs)


CORES = Platform((Device("cpu", "cpu", slots=4), Device("gpu", "gpu")))


def chain(name, *lengths):
    """Layers named after how many milliseconds they take."""
    layers = [
        Layer(f"{name}/{number}:{ms}", Work("conv"), (Port(number - 1),)) for number, ms in enumerate(lengths)
    ]
    return LayerGraph(layers, [Port(len(lengths) - 1)], name=name)


def job(urgency_s, device, rank=0.0):
    """Returns a job of a request of its own."""
    graph = LayerGraph([layer("a", Port(-1))], [Port(0)])
    return Job(graph.layers[0], (), 0, Request(0, graph), 0, device, urgency_s=urgency_s, rank=rank)


class Tensor:
    """What a layer makes, and whose end can be seen."""


class Movable(Policy):
    """Everything on one device, from which it may be taken."""

    name = "movable"

    def select(self, request, index, places, board):
        return board.platform["cpu"]

    def may_move(self, request):
        return True


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
        for layer in forms(graph):
            gpu_s = rng.uniform(1, 5) * 1e-3
            slower = rng.uniform(2, 10) if layer.work.kind == "conv" else rng.uniform(0.3, 2)
            table[layer.name] = {"gpu": gpu_s, "cpu": gpu_s * slower}
    return lambda layer, device: table[layer.name][device.kind]


def in_pieces(rng: random.Random, graph: LayerGraph, *, share: float = 0.4) -> LayerGraph:
    """The graph with some of its layers as pieces, a join, and the layer itself in one piece."""
    layers: list[Layer] = []
    home: list[int] = []

    def moved(port: Port) -> Port:
        return port if port.source < 0 else Port(home[port.source], port.index)

    for layer in graph.layers:
        reads = tuple(moved(port) for port in layer.inputs)
        whole = replace(layer, inputs=reads)
        if rng.random() < share:
            first, count = len(layers), rng.randrange(2, 5)
            # What a join reads beside its pieces may come later, as where an addition was merged with it.
            seen = rng.randrange(1, len(reads) + 1)
            layers += [
                Layer(f"{layer.name}/{number}", layer.work, reads[:seen], (10**6,), alone=True)
                for number in range(count)
            ]
            pieces = (*(Port(first + number) for number in range(count)), *reads[seen:])
            whole = Layer(f"{layer.name}/join", Work("merge"), pieces, layer.output_bytes, whole=whole)
        home.append(len(layers))
        layers.append(whole)
    return LayerGraph(
        layers, [moved(p) for p in graph.outputs], input_bytes=graph.input_bytes, name=graph.name
    )


def forms(graph: LayerGraph) -> list[Layer]:
    """All layers, those that may run in one piece also so."""
    return [*graph.layers, *(layer.whole for layer in graph.layers if layer.whole is not None)]


def cut(pieces=4, *, name="x"):
    """A layer in pieces between two others."""
    layers = [Layer("before", Work("pool"), (Port(-1),))]
    layers += [Layer(f"{name}/{n}", Work("conv"), (Port(0),), alone=True) for n in range(pieces)]
    whole = Layer(name, Work("conv"), (Port(0),))
    layers.append(
        Layer(f"{name}/join", Work("merge"), tuple(Port(n + 1) for n in range(pieces)), whole=whole)
    )
    layers.append(Layer("after", Work("pool"), (Port(pieces + 1),)))
    return LayerGraph(layers, [Port(pieces + 2)])


def times(gpu_s, cpu_s, pieces=4):
    """`x` whole takes so long; a piece its share of that and a tenth; the others hardly anything."""

    def true_s(layer, device):
        whole_s = gpu_s if device.kind == "gpu" else cpu_s
        if layer.name == "x":
            return whole_s
        return 1.1 * whole_s / pieces if layer.alone else 1e-6

    return true_s
