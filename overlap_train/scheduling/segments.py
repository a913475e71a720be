"""Merging neighbouring layers into segments, where a call costs more than it gains.

A segment is a run of consecutive layers of the topological order, so merging never makes a cycle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from overlap_train.scheduling.costs import Costs
from overlap_train.scheduling.devices import Platform
from overlap_train.scheduling.graph import REQUEST, Layer, LayerGraph, Port, Work

__all__ = ["Segments", "choose_segments", "merge_layers", "merge_work"]


@dataclass(frozen=True)
class Segments:
    """A graph merged into a smaller one.

    Attributes:
        graph: of segments; their `runs` are empty unless every segment is a single layer.
        members: for each segment, the range of layers of the original graph.
        outputs: for each segment, the tensors of the original graph that it returns, in order.
        inputs: for each segment, the tensors of the original graph that it reads, in order.
    """

    graph: LayerGraph
    members: tuple[range, ...]
    inputs: tuple[tuple[Port, ...], ...]
    outputs: tuple[tuple[Port, ...], ...]


def merge_work(works: Sequence[Work]) -> Work:
    """What several layers do together; its kind is that of the one with the most FLOPs."""
    if len(works) == 1:
        return works[0]
    parts = tuple(part for work in works for part in work.single_parts())
    return Work(
        max(parts, key=lambda part: part.flops).kind,
        sum(part.flops for part in parts),
        sum(part.moved_bytes for part in parts),
        sum(part.weight_bytes for part in parts),
        parts[0].batch,
        sum(part.operations for part in parts),
        parts,
    )


def choose_segments(
    graph: LayerGraph,
    platform: Platform,
    costs: Costs,
    *,
    call_s: float = 1e-4,
    longest_s: float = float("inf"),
) -> list[range]:
    """Decides which neighbours to merge.

    Two neighbours are merged when, both on the device that is best for them together, they take at
    most `call_s` longer than each on its own best device: the call that is saved pays for it. Pairs
    that lose least are merged first. Layers that are to stay alone do.

    Args:
        graph: of single layers.
        platform: where the segments will run.
        costs: run times of the layers.
        call_s: what one more call costs, in seconds.
        longest_s: a segment is not grown beyond this, so that urgent requests get in between.

    Returns:
        The ranges of layers, in order.
    """
    devices = {(device.kind, device.name): device for device in platform.devices}.values()
    times = [[costs.seconds(layer, device) for device in devices] for layer in graph.layers]
    groups = [(range(index, index + 1), row) for index, row in enumerate(times)]
    alone = {index for index, layer in enumerate(graph.layers) if layer.alone}
    limit_s = call_s
    for limit_s in (0.0, call_s / 4, call_s):
        groups = _merged_within(groups, alone, limit_s, longest_s)
    return [members for members, _ in groups]


def merge_layers(graph: LayerGraph, groups: Sequence[range]) -> Segments:
    """Builds the graph of segments.

    Raises:
        ValueError: the groups do not cover the layers in order.
    """
    if [index for group in groups for index in group] != list(range(len(graph))):
        raise ValueError(
            f"{graph.name}: segments must cover layers 0 to {len(graph) - 1} in order, got {groups}"
        )
    home = {index: number for number, group in enumerate(groups) for index in group}
    wanted: set[Port] = set(graph.outputs)
    for index, layer in enumerate(graph.layers):
        wanted |= {p for p in layer.inputs if p.source != REQUEST and home[p.source] != home[index]}
    inputs = tuple(_inputs(graph, group) for group in groups)
    outputs = tuple(
        tuple(
            Port(i, n)
            for i in group
            for n in range(len(graph.layers[i].output_bytes))
            if Port(i, n) in wanted
        )
        for group in groups
    )
    renamed = {port: Port(number, n) for number, ports in enumerate(outputs) for n, port in enumerate(ports)}

    def rename(port: Port) -> Port:
        return port if port.source == REQUEST else renamed[port]

    layers = []
    for number, group in enumerate(groups):
        members = [graph.layers[index] for index in group]
        name = members[0].name if len(members) == 1 else f"{members[0].name}..{members[-1].name}"
        layers.append(
            Layer(
                name,
                merge_work([member.work for member in members]),
                tuple(rename(port) for port in inputs[number]),
                tuple(graph.port_bytes(port) for port in outputs[number]),
                members[0].runs
                if len(members) == 1 and len(outputs[number]) == len(members[0].output_bytes)
                else {},
                alone=len(members) == 1 and members[0].alone,
            )
        )
    merged = LayerGraph(
        layers, [rename(port) for port in graph.outputs], input_bytes=graph.input_bytes, name=graph.name
    )
    return Segments(merged, tuple(groups), inputs, outputs)


def _inputs(graph: LayerGraph, group: range) -> tuple[Port, ...]:
    ports = (port for index in group for port in graph.layers[index].inputs if port.source not in group)
    return tuple(dict.fromkeys(ports))


_Group = tuple[range, list[float]]


def _merged_within(groups: list[_Group], alone: set[int], limit_s: float, longest_s: float) -> list[_Group]:
    """Merges each group into the one before it while that loses at most `limit_s`."""
    merged: list[_Group] = []
    for group in groups:
        merged.append(group)
        while len(merged) > 1:
            (left, left_s), (right, right_s) = merged[-2], merged[-1]
            both_s = [a + b for a, b in zip(left_s, right_s, strict=True)]
            loss_s = min(both_s) - min(left_s) - min(right_s)
            if left.start in alone or right.start in alone:  # then they are groups of one
                break
            if loss_s > limit_s * (1 + 1e-9) + 1e-12 or min(both_s) > longest_s:
                break
            merged[-2:] = [(range(left.start, right.stop), both_s)]
    return merged
