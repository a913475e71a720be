"""The passes that validations have made over data that draws anew for each, told to another process.

A reshuffling `shuffle` draws from its seeds whenever a pass begins. So a training that goes on elsewhere
begins as many passes, of which nothing is read. Variables to which a validation's pipeline writes are among
the snapshot's values. Of a `PyDataset` the state is told, as of one that is trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from overlap_train._data.pass_state import SourceState
from overlap_train._data.streamed_batches import StreamedBatches
from overlap_train._support.arguments import is_count

# So many passes may have been begun at most: an endless loop would follow from more.
_MOST = 10**7


@dataclass(frozen=True)
class ValidationPasses:
    """Tells how far the validation sets of a fit have been drawn, and gets there. On the training thread."""

    _sets: Mapping[str, StreamedBatches]
    _say: Callable[[str], None]
    _sources: Mapping[str, SourceState] = field(default_factory=dict)

    def standing(self) -> dict[str, Any]:
        """Returns how far they have been drawn, in values for a checkpoint. No validation is under way."""
        stood: dict[str, Any] = {name: each.standing() for name, each in self._sets.items()}
        return stood | {name: {"state": source.take()} for name, source in self._sources.items()}

    def go_on(self, stood: Any) -> None:
        """Draws them as far as another process had; what that writes to variables is to be put back then."""
        if not isinstance(stood, Mapping) or not stood.keys() >= self._sets.keys() | self._sources.keys():
            raise ValueError("it does not say how often its validation data has been drawn")
        for name, source in self._sources.items():
            place = _checked(stood[name], "state", lambda state: isinstance(state, dict))
            others = source.put_back(place["state"])
            if others:
                of = f" of set {name!r}" if name else ""
                names = ", ".join(others)
                self._say(f"of the validation data{of} these attributes are others than before: {names}")
        for name, each in self._sets.items():
            each.go_on(_checked(stood[name], "made", lambda made: is_count(made, _MOST)))


def _checked(place: Any, key: str, is_valid: Callable[[Any], bool]) -> dict[str, Any]:
    """Returns what a checkpoint says of a set, if that makes sense."""
    if not isinstance(place, dict) or not is_valid(place.get(key)):
        raise ValueError(f"what it says of its validation data is invalid ({place!r:.160})")
    return place
