"""Requests and their jobs; frozen, or owned by the thread that holds the engine's lock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from overlap_train._support.numbers import require_count
from overlap_train.scheduling.graph.devices import Device
from overlap_train.scheduling.graph.layers import Layer, LayerGraph

_LARGEST_PRIORITY = 1 << 53  # a float has no integers beyond it

__all__ = ["Job", "Request", "require_priority", "urgency"]


@dataclass(eq=False, slots=True)
class Request:
    """One inference through one network.

    Attributes:
        number: counts requests of this scheduler from 0.
        graph: the network.
        inputs: the tensors that it brings.
        arrival_s: when it was accepted, on the engine's clock.
        priority: larger is more urgent.
        deadline_s: when it should be done, on the engine's clock; None for whenever.
        examples: the batch, relative to the batch that the graph's figures are for.
        whole: for layers that join pieces, whether they run in one piece instead; set when the first piece
            could begin.
        on_done: called once with (request, outputs or None, error or None), on the thread that
            finished the last job.
    """

    number: int
    graph: LayerGraph
    inputs: tuple[Any, ...] = ()
    arrival_s: float = 0.0
    priority: int = 0
    deadline_s: float | None = None
    examples: float = 1.0
    on_done: Callable[[Request, Any, BaseException | None], None] | None = None
    whole: dict[int, bool] = field(default_factory=dict)

    def layer(self, index: int) -> Layer:
        """Layer `index` in the form in which it runs."""
        return self.graph.form(index, whole=self.whole.get(index, False))


@dataclass(frozen=True, eq=False, slots=True)
class Job:
    """A layer of a request that is ready to run.

    Attributes:
        layer: what to run.
        inputs: its input tensors, in order.
        size_bytes: the bytes that these have together.
        request: whose it is.
        index: of the layer in the request's graph.
        device: where the core selector put it.
        transfer_bytes: what has to be brought to that device from others.
        transfer_s: how long that should take.
        predicted_s: how long it should take there, transfers included.
        urgency_s: smaller runs first; see `urgency`.
        rank: larger runs first among jobs that are equally urgent.
    """

    layer: Layer
    inputs: tuple[Any, ...]
    size_bytes: int
    request: Request
    index: int
    device: Device
    transfer_bytes: int = 0
    transfer_s: float = 0.0
    predicted_s: float = 0.0
    urgency_s: float = 0.0
    rank: float = 0.0


def require_priority(name: str, value: object) -> int:
    """Return a priority as an int; raises TypeError, or ValueError where it cannot be weighed as a time."""
    return require_count(name, value, minimum=-_LARGEST_PRIORITY, maximum=_LARGEST_PRIORITY)


def urgency(request: Request, *, remaining_s: float, aging_s: float) -> float:
    """When a request would have to arrive to rank where it does, in seconds of the engine's clock.

    A unit of priority counts as having waited `aging_s` longer; a deadline ranks a request as if it
    had arrived at the last moment at which it can start and still meet it, if that is earlier. Since
    later requests get later values without bound, none starves.
    """
    rank_s = request.arrival_s - request.priority * aging_s
    if request.deadline_s is not None:
        rank_s = min(rank_s, request.deadline_s - remaining_s - aging_s)
    return rank_s
