"""Whether what the data draws can be found again by a fit that resumes (C8), or why not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import keras

from overlap_train._data.pipeline import (
    caches_draws,
    captured_by,
    keeps_more_than_variables,
    reorders,
    shuffles_of,
)
from overlap_train._data.streamed_batches import StreamedBatches
from overlap_train._fit.draws import handles_of, shared_shuffles
from overlap_train._fit.request import FitRequest
from overlap_train._inspection.code import Unclear
from overlap_train._inspection.traced import CapturedVariable

__all__ = ["not_to_be_found"]

_ALIKE = "shuffle(…, reshuffle_each_iteration=False) and arrays are the same in each validation"


def not_to_be_found(request: FitRequest, drawing: Mapping[str, StreamedBatches]) -> str | None:
    """Returns what the data draws that a resumed fit would draw otherwise, and what would not be; or None.

    Args:
        request: of the fit.
        drawing: the batches, by the set's name, of which each pass moves what the next one draws from.
    """
    feed = request.feed
    if feed.made_of is not None and caches_draws(feed.made_of):
        return (
            "the training data caches what it draws at random or from a variable; draw behind the cache, as "
            "in dataset.cache().map(…), or leave the cache out"
        )
    data = {name: keras.utils.unpack_x_y_sample_weight(each.data)[0] for name, each in request.sets.items()}
    if _share_shuffles(request):
        return (
            "the training and the validation data come from one shuffle, and draw from its seeds in turn; "
            "shuffle(…, reshuffle_each_iteration=False), or a shuffle of its own for each, would do"
        )
    for name, each in data.items():
        reason = _of_set(request, each, drawing.get(name))
        if reason is not None:
            return reason
    return _in_turn(request, data, drawing)


def _share_shuffles(request: FitRequest) -> bool:
    try:
        return shared_shuffles(request.feed, [each.data for each in request.sets.values()])
    except Unclear:  # Python of the data that reaches too much, whose state is stored as far as it can be
        return False


def _of_set(request: FitRequest, data: Any, batches: StreamedBatches | None) -> str | None:
    """Returns what is drawn for a validation set and found in no checkpoint, or None."""
    if keeps_more_than_variables(data) and len(request.feed.reads) > len(request.feed.captured):
        return (
            "the training and the validation data may share a table, an iterator, a queue or a dataset that "
            "is not found; a tf.Variable, or one for each, would do"
        )
    shuffles = reorders(data)
    moves = batches is not None or shuffles or keeps_more_than_variables(data)
    elsewhere = not request.settings.validates_alone
    if elsewhere and (moves or any(variable.written for variable in captured_by(data))):
        return f"the validation data is drawn anew each time, on several hosts; {_ALIKE}"
    if batches is None and moves:
        return f"an evaluate of the model's own draws the validation data; {_ALIKE}"
    if shuffles and _validates_inside(request):
        return f"the validation data is shuffled anew, also for validations inside epochs; {_ALIKE}"
    return None


def _in_turn(
    request: FitRequest, data: Mapping[str, Any], drawing: Mapping[str, StreamedBatches]
) -> str | None:
    """Returns which variables or shuffles several draw from, where that cannot be had again; or None."""
    feed = request.feed
    of_training = _Sources.of(feed.captured, feed.shuffles)
    goes_on = request.steps_per_epoch not in (None, feed.num_batches) or _validates_inside(request)
    of_model = {id(handle) for handle in handles_of(request.model)}
    hidden = [name for name, each in data.items() if keeps_more_than_variables(each)]
    if len(hidden) > 1:
        return (
            f"the sets {hidden[0]!r} and {hidden[1]!r} may share a table, an iterator, a queue or a dataset"
        )
    sources = {name: _Sources.of(captured_by(each), shuffles_of(each)) for name, each in data.items()}
    for name, own in sources.items():
        shared = own.in_turn_with(of_training)
        if shared and goes_on:
            return (
                f"the training and the validation data share {shared}, in the middle of a pass over the "
                "training data; one for each would do"
            )
        if name not in drawing or not drawing[name].redraws:
            continue
        others = [other for each, other in sources.items() if each != name]
        others += [of_training, _Sources(dict.fromkeys(of_model, True), {}, frozenset())]
        shared = next(filter(None, map(own.in_turn_with, others)), None)
        if shared:
            return (
                f"the validation data shares {shared}, and caches what it draws or draws it within a pass; "
                "one of its own would do"
            )
    return None


def _validates_inside(request: FitRequest) -> bool:
    """Whether validations are made inside epochs."""
    policy = request.settings.validation
    return policy.every_steps is not None or policy.every_seconds is not None


@dataclass(frozen=True)
class _Sources:
    """What a pipeline draws from.

    Attributes:
        variables: by the `id` of their handles, and whether it writes to them.
        names: of these.
        shuffles: see `shuffles_of`.
    """

    variables: Mapping[int, bool]
    names: Mapping[int, str]
    shuffles: frozenset[int]

    @classmethod
    def of(cls, captured: Iterable[CapturedVariable], shuffles: frozenset[int]) -> _Sources:
        variables = {id(variable.handle): variable for variable in captured}
        return cls(
            {handle: variable.written for handle, variable in variables.items()},
            {handle: variable.name for handle, variable in variables.items()},
            shuffles,
        )

    def in_turn_with(self, other: _Sources) -> str | None:
        """Returns what both get at and one of them changes, or None."""
        common = self.variables.keys() & other.variables.keys()
        moved = [handle for handle in common if self.variables[handle] or other.variables[handle]]
        if moved:
            return f"the variable {self.names[moved[0]]}"
        return "a shuffle" if self.shuffles & other.shuffles else None
