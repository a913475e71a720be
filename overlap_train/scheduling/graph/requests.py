"""Requests and their jobs; frozen, or owned by the thread that holds the engine's lock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from overlap_train._support.arguments import require_count
from overlap_train.scheduling.graph.devices import Device
from overlap_train.scheduling.graph.layers import Layer, LayerGraph

_LARGEST_PRIORITY = 1 << 53  # a float has no integers beyond it

__all__ = ["Job", "Request", "require_priority", "urgency"]


@dataclass(eq=False, slots=True)
class Request:
    """One inference through one network."""

    number: int
    graph: LayerGraph
    inputs: tuple[Any, ...] = ()
    arrival_s: float = 0.0  # on the engine's clock, as is the deadline
    priority: int = 0
    deadline_s: float | None = None
    examples: float = 1.0  # relative to the batch that the graph's figures are for
    # Called once with (request, outputs or None, error or None), on the thread that finished the last job.
    on_done: Callable[[Request, Any, BaseException | None], None] | None = None
    # For layers that join pieces, whether they run whole; set when the first piece could begin.
    whole: dict[int, bool] = field(default_factory=dict)

    def layer(self, index: int) -> Layer:
        """Layer `index` in the form in which it runs."""
        return self.graph.form(index, whole=self.whole.get(index, False))


@dataclass(frozen=True, eq=False, slots=True)
class Job:
    """A layer of a request that is ready to run."""

    layer: Layer
    inputs: tuple[Any, ...]
    size_bytes: int
    request: Request
    index: int
    device: Device
    transfer_bytes: int = 0  # to be brought to the device from others
    transfer_s: float = 0.0
    predicted_s: float = 0.0  # transfers included
    urgency_s: float = 0.0  # smaller runs first
    rank: float = 0.0  # larger runs first among jobs that are equally urgent


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
