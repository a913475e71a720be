"""The validations inside epochs in a checkpoint: their results, and the snapshot of the one under way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from overlap_train._checkpoint.state import CheckpointState, shortened
from overlap_train._checkpoint.values import (
    Arrays,
    are_logs,
    check_values,
    pack_values,
    specs_of,
    stored_values,
    unpack_dict,
)
from overlap_train._copies.packing import pack
from overlap_train._snapshot import InsideEpochs, ModelState, Snapshot
from overlap_train._support.numbers import is_count
from overlap_train.errors import CheckpointCorruptError
from overlap_train.records import StepValidation

__all__ = ["pack_inside_epochs", "unpack_inside_epochs"]

_HERE = "inside_epochs"


def pack_inside_epochs(stood: InsideEpochs) -> tuple[Arrays, Any]:
    """Split the validations inside epochs into arrays and JSON."""
    values: dict[str, Any] = {
        name: [[each.epoch, each.step, dict(each.metrics)] for each in getattr(stood, name)]
        for name in ("delivered", "finished")
    }
    pending = stood.pending
    if pending is not None:
        values["pending"] = [pending.epoch, pending.step, dict(stood.live)]
    arrays, described = pack(values, f"{_HERE}/parts")
    return arrays | (pack_values(pending.values, _HERE) if pending is not None else {}), described


def unpack_inside_epochs(state: CheckpointState, described: Any, variables: ModelState) -> InsideEpochs:
    """Put them together again, or raise CheckpointCorruptError."""
    values = unpack_dict(state.arrays, described, sharing=False)
    done = _results(values, "delivered", state), _results(values, "finished", state)
    if "pending" not in values:
        return InsideEpochs(*done)
    epoch, step, live = _checked(values["pending"], state)
    check_values(state.arrays, specs_of(variables), _HERE)
    snapshot = Snapshot(epoch, step, stored_values(variables, state.arrays, _HERE))
    return InsideEpochs(*done, snapshot, live)


def _results(values: Mapping[str, Any], name: str, end: CheckpointState) -> tuple[StepValidation, ...]:
    entries = values.get(name)
    if not isinstance(entries, list):
        raise CheckpointCorruptError(f"its list of {name} validations inside epochs is missing")
    return tuple(StepValidation(*_checked(entry, end)) for entry in entries)


def _checked(entry: Any, end: CheckpointState) -> tuple[int, int, dict[str, Any]]:
    if isinstance(entry, list) and len(entry) == 3:
        epoch, step, metrics = entry
        if are_logs(metrics) and is_count(step, end.step) and is_count(epoch, end.epoch):
            return int(epoch), int(step), metrics
    raise CheckpointCorruptError(f"one of its validations inside epochs is invalid ({shortened(entry)})")
