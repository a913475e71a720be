"""The passes that validations have made over data that draws anew for each, told to another process.

A reshuffling `shuffle` draws from its seeds whenever a pass begins. So a training that goes on elsewhere
begins as many passes, of which nothing is read. Variables to which a validation's pipeline writes are among
the snapshot's values. Of a `PyDataset` the state is told, as of one that is trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from overlap_train._data.pass_state import SourceState
from overlap_train._data.streamed_batches import StreamedBatches
from overlap_train._support.arguments import is_count

# So many passes may have been begun at most: an endless loop would follow from more.
_MOST = 10**7


class ValidationPasses:
    """Tells how far the validation sets of a fit have been drawn, and gets there. On the training thread."""

    def __init__(
        self,
        sets: Mapping[str, StreamedBatches],
        say: Callable[[str], None],
        sources: Mapping[str, SourceState] | None = None,
    ) -> None:
        self._sets = sets
        self._sources = sources or {}
        self._say = say

    def standing(self) -> dict[str, Any]:
        """Returns how far they have been drawn, in values for a checkpoint. No validation is under way."""
        stood: dict[str, Any] = {name: each.standing() for name, each in self._sets.items()}
        return stood | {name: {"state": source.take()} for name, source in self._sources.items()}

    def go_on(self, stood: Any) -> None:
        """Draws them as far as another process had; what that writes to variables is to be put back then."""
        if not isinstance(stood, Mapping) or not stood.keys() >= self._sets.keys() | self._sources.keys():
            raise ValueError("it does not say how often its validation data has been drawn")
        for name, source in self._sources.items():
            others = source.put_back(_state_in(stood[name]))
            if others:
                names = ", ".join(others)
                self._say(
                    f"of the validation data{_of(name)} these attributes are others than before: {names}"
                )
        for name, each in self._sets.items():
            each.go_on(_checked(stood[name]))


def _of(name: str) -> str:
    return f" of set {name!r}" if name else ""


def _state_in(place: Any) -> Mapping[str, Any]:
    """Returns the state of a source, if there is one."""
    state = place.get("state") if isinstance(place, dict) else None
    if not isinstance(state, dict):
        raise ValueError(f"what it says of the state of its validation data is invalid ({place!r:.160})")
    return state


def _checked(place: Any) -> dict[str, Any]:
    """Returns how far a set has been drawn, if that makes sense."""
    if not isinstance(place, dict) or not is_count(place.get("made"), _MOST):
        raise ValueError(f"what it says of the passes over its validation data is invalid ({place!r:.160})")
    return place
