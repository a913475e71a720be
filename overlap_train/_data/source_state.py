"""How data that Python makes tells where it stands; `_checkpoint.data_state` takes the state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

__all__ = ["NotesState", "SourceState", "begun_at", "state_at"]


class SourceState(Protocol):
    """Takes the state of a source, and puts it back."""

    @property
    def left_out(self) -> Sequence[str]:
        """The names of what cannot be taken and may change."""

    def take(self) -> dict[str, Any]:
        """Returns the present state, in values that a checkpoint can hold."""

    def check(self, state: Mapping[str, Any]) -> None:
        """Makes sure that a state of a file is one, whether or not this source takes it; changes nothing."""

    def put_back(self, state: Mapping[str, Any]) -> list[str]:
        """Puts a state of another process back; returns what of it stays as it is."""

    def told(self, state: Mapping[str, Any]) -> Any:
        """Returns what the source itself told as a state was taken."""


NotesState = Callable[[Any], SourceState]


def state_at(iterator: Any, count: int, note: NotesState) -> dict[str, Any] | None:
    """Returns the state of a source whose iterator has given `count` elements, for `begun_at`.

    None if the iterator has drawn others ahead, or has a state that no checkpoint can hold.
    """
    if iterator is None or iterator.count != count:
        return None
    try:
        return note(iterator).take()
    except TypeError:
        return None


def begun_at(source: Any, count: int, state: Mapping[str, Any], note: NotesState) -> Any:
    """Makes a source begin its next pass where another process stood.

    Returns the iterator of that pass, or None if the source does not take the state: its elements have to be
    drawn.
    """
    seeds = note(None)
    try:
        begun = source.begin_at(count, seeds.told(state))
    except (AttributeError, LookupError, TypeError, ValueError):
        return None
    seeds.put_back(state)
    return begun
