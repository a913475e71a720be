"""Merging neighbouring layers into segments, where a call costs more than it gains.

A segment is a run of consecutive layers of the topological order, so merging never makes a cycle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from overlap_train.scheduling.costs import Costs
from overlap_train.scheduling.graph import REQUEST, Layer, LayerGraph, Platform, Port, merge_work


@dataclass(frozen=True)
class Segments:
    """A graph merged into a smaller one."""

    graph: LayerGraph
    members: tuple[range, ...]  # the layers of the original graph in each segment
    inputs: tuple[tuple[Port, ...], ...]
    outputs: tuple[tuple[Port, ...], ...]


def choose_segments(
    graph: LayerGraph,
    platform: Platform,
    costs: Costs,
    *,
    call_s: float = 1e-4,
) -> list[range]:
    """Return ranges of layers to merge: two neighbours if a call costs more than both lose on one device.

    Those that lose least are merged first.
    """
    groups = [
        (group, [costs.seconds(graph.layers[group.start], device) for device in platform.devices])
        for group in single_layers(graph)
    ]
    alone = {index for index, layer in enumerate(graph.layers) if layer.alone}
    for limit_s in (0.0, call_s / 4, call_s):
        groups = _merge_within(groups, alone, limit_s)
    return [members for members, _ in groups]


def single_layers(graph: LayerGraph) -> list[range]:
    """Return the ranges of layers where none are merged."""
    return [range(index, index + 1) for index in range(len(graph))]


def piece_shares(layer: Layer, platform: Platform, costs: Costs, pieces: int) -> list[float]:
    """Return the shares of `pieces`, dealt out to the fastest slots, in proportion to their speed."""
    slots_s = sorted(costs.seconds(layer, device) for device in platform.devices for _ in range(device.slots))
    return [
        1
        / max(slots_s[number % len(slots_s)], 1e-9)
        / len(range(number % len(slots_s), pieces, len(slots_s)))
        for number in range(pieces)
    ]


def worth_cutting(
    whole: LayerGraph, in_pieces: LayerGraph, platform: Platform, costs: Costs, *, call_s: float = 1e-4
) -> set[str]:
    """Return which layers of `whole` gain a tenth on idle devices by running as in `in_pieces`."""
    parts: dict[str, list[Layer]] = {}
    for layer in in_pieces.layers:
        parts.setdefault(layer.name.rpartition("/")[0], []).append(layer)

    def least_s(layer: Layer) -> float:
        return min(costs.seconds(layer, device) for device in platform.devices)

    def in_pieces_s(pieces: Sequence[Layer], join: Layer) -> float:
        free = [(0.0, device) for device in platform.devices for _ in range(device.slots)]
        for piece in sorted(pieces, key=least_s, reverse=True):
            ends_s = [begin_s + costs.seconds(piece, device) for begin_s, device in free]
            first = ends_s.index(min(ends_s))
            free[first] = (ends_s[first], free[first][1])
        # In pieces there are two more calls one after the other, each handed to another thread.
        return max(end_s for end_s, _ in free) + least_s(join) + 4 * call_s

    return {
        layer.name
        for layer in whole.layers
        if layer.name in parts
        if in_pieces_s(parts[layer.name][:-1], parts[layer.name][-1]) < 0.9 * least_s(layer)
    }


def merge_layers(graph: LayerGraph, groups: Sequence[range]) -> Segments:
    """Build the graph of segments from groups that cover all layers in order."""
    members = [[graph.layers[index] for index in group] for group in groups]
    inputs = tuple(map(_inputs, members, groups))
    outputs = _outputs(graph, groups)
    names = {port: Port(number, n) for number, ports in enumerate(outputs) for n, port in enumerate(ports)}

    def rename(port: Port) -> Port:
        return port if port.source == REQUEST else names[port]

    def merge(layers: Sequence[Layer], reads: Sequence[Port], returns: Sequence[Port]) -> Layer:
        first, single = layers[0], len(layers) == 1
        return Layer(
            first.name if single else f"{first.name}..{layers[-1].name}",
            merge_work([layer.work for layer in layers]),
            tuple(map(rename, reads)),
            tuple(map(graph.port_bytes, returns)),
            first.runs if single and len(returns) == len(first.output_bytes) else {},
            alone=single and first.alone,
        )

    segments = list(map(merge, members, inputs, outputs))
    segment_graph = LayerGraph(
        segments, list(map(rename, graph.outputs)), input_bytes=graph.input_bytes, name=graph.name
    )
    return Segments(segment_graph, tuple(groups), inputs, outputs)


def _outputs(graph: LayerGraph, groups: Sequence[range]) -> tuple[tuple[Port, ...], ...]:
    """Return the tensors of each group that other groups or the graph's caller read."""
    home = {index: number for number, group in enumerate(groups) for index in group}
    exports = set(graph.outputs)
    for index, layer in enumerate(graph.layers):
        exports |= {p for p in layer.inputs if p.source != REQUEST and home[p.source] != home[index]}
    ports = [
        [Port(i, n) for i in group for n in range(len(graph.layers[i].output_bytes))] for group in groups
    ]
    return tuple(tuple(port for port in of_group if port in exports) for of_group in ports)


def _inputs(members: Sequence[Layer], group: range) -> tuple[Port, ...]:
    """Return the tensors that come from outside a group, each once."""
    ports = (port for member in members for port in member.inputs if port.source not in group)
    return tuple(dict.fromkeys(ports))


_Group = tuple[range, list[float]]
"""Layers, and their seconds by device."""


def _merge_within(groups: list[_Group], alone: set[int], limit_s: float) -> list[_Group]:
    """Merge each group into the one before it while that loses at most `limit_s`."""
    result: list[_Group] = []
    for group in groups:
        result.append(group)
        while len(result) > 1:
            (left, left_s), (right, right_s) = result[-2], result[-1]
            both_s = [a + b for a, b in zip(left_s, right_s, strict=True)]
            loss_s = min(both_s) - min(left_s) - min(right_s)
            if left.start in alone or right.start in alone:  # then they are groups of one
                break
            if loss_s > limit_s * (1 + 1e-9) + 1e-12:
                break
            result[-2:] = [(range(left.start, right.stop), both_s)]
    return result
