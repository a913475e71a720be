"""Arranges spans for drawing: in which row, how deep, and which of them are too short to be told apart."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from overlap_train.records import Span

__all__ = ["Bar", "merged_bars", "thread_order"]


@dataclass(slots=True)
class Bar:
    """One rectangle to draw: a span, or neighbours of one name and epoch that run together."""

    name: str
    epoch: int | None
    depth: int  # how many spans of the same thread it lies inside
    start_s: float
    end_s: float


def thread_order(spans: Iterable[Span]) -> list[str]:
    """Return the threads, those that train first, the others by name with worker-2 before worker-10."""
    trains: dict[str, bool] = {}
    for span in spans:
        trains[span.thread] = trains.get(span.thread, False) or span.name == "train"
    return sorted(trains, key=lambda thread: (not trains[thread], _natural(thread)))


def merged_bars(spans: Iterable[Span], *, pixel_s: float) -> dict[str, list[Bar]]:
    """Arrange each thread's spans into bars, in the order of `thread_order`.

    Neighbours of one name and epoch become one bar where the gap between them is narrower than a pixel:
    the picture is the same, and many short spans cost no more than the pixels that they cover.

    Returns:
        The bars of each thread, in order of start, outer ones before the inner.
    """
    spans = list(spans)
    by_thread: defaultdict[str, list[Span]] = defaultdict(list)
    for span in spans:
        by_thread[span.thread].append(span)
    return {thread: _bars_of_thread(by_thread[thread], pixel_s) for thread in thread_order(spans)}


def _bars_of_thread(spans: Sequence[Span], pixel_s: float) -> list[Bar]:
    bars: list[Bar] = []
    open_ends: list[float] = []
    latest: dict[tuple[str, int | None, int], Bar] = {}
    for span in sorted(spans, key=lambda span: (span.start_s, -span.end_s)):
        while open_ends and open_ends[-1] <= span.start_s:
            open_ends.pop()
        key = (span.name, span.epoch, len(open_ends))
        open_ends.append(span.end_s)
        bar = latest.get(key)
        if bar is not None and span.start_s - bar.end_s <= pixel_s:
            bar.end_s = max(bar.end_s, span.end_s)
        else:
            latest[key] = bar = Bar(span.name, span.epoch, key[2], span.start_s, span.end_s)
            bars.append(bar)
    return bars


def _natural(name: str) -> list[tuple[int, int, str]]:
    """Make a sorting key in which numbers inside a name count as numbers."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", name)]
