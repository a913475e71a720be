"""The passes that validations have made over data that draws anew for each, told to another process.

A reshuffling `shuffle` draws from its seeds whenever a pass begins. So a training that goes on elsewhere
begins as many passes, of which nothing is read; where a pass draws as it is read, or fills a cache, it is
read again. Variables to which a validation's pipeline writes are among the snapshot's values. Of a
`PyDataset` the state is told, as of one that is trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from overlap_train._data.pass_state import PipelineVariables, SourceState
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
        # With which those begin that have to be read again from their first pass on.
        self._first = {name: PipelineVariables(each.written) for name, each in sets.items() if each.redraws}
        for variables in self._first.values():
            variables.note(0)

    def standing(self) -> dict[str, Any]:
        """Returns how far they have been drawn, in values for a checkpoint. No validation is under way."""
        stood: dict[str, Any] = {name: each.standing() for name, each in self._sets.items()}
        for name, variables in self._first.items():
            stood[name]["variables"] = variables.noted(0)
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
            place = _checked(stood[name])
            if name in self._first:
                self._first[name].take(0, place.get("variables"))
                self._first[name].put_back(0)
                self._tell(name, len(place["passes"]))
            each.go_on(place)

    def _tell(self, name: str, count: int) -> None:
        self._say(
            f"the batches of {count} validations{_of(name)} are drawn again, to come to the same place in "
            "their seeds; with shuffle(…, reshuffle_each_iteration=False) none would be"
        )


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
    fits = isinstance(place, dict) and is_count(place.get("made"), _MOST)
    passes = place.get("passes") if fits else None
    if not isinstance(passes, list) or len(passes) > _MOST or not all(map(_is_pass, passes)):
        raise ValueError(f"what it says of the passes over its validation data is invalid ({place!r:.160})")
    return dict(place)


def _is_pass(each: Any) -> bool:
    return isinstance(each, tuple) and len(each) == 2 and is_count(each[0], _MOST) and type(each[1]) is bool
