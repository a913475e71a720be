"""D: the validation set, divided among the workers at batch boundaries."""

from __future__ import annotations

from dataclasses import dataclass

from overlap_train._keras.data import warn_out_of_data

__all__ = ["Shard", "split_batches", "warn_if_short"]


@dataclass(frozen=True, slots=True)
class Shard:
    """A worker's part: the batches from `first` up to, not including, `stop`."""

    index: int
    first: int
    stop: int


def split_batches(num_batches: int, parts: int) -> list[Shard]:
    """Divides batches into at most `parts` runs whose lengths differ by one at most; none is empty."""
    parts = min(parts, num_batches)
    if parts == 0:
        return []
    bounds = [num_batches * i // parts for i in range(parts + 1)]
    return [Shard(i, bounds[i], bounds[i + 1]) for i in range(parts)]


def warn_if_short(count: int, least: int | None) -> None:
    """Warns, as Keras does, that a validation had fewer batches than were asked for, or none at all."""
    if count < (least or 1):
        warn_out_of_data(asked=least is not None)
