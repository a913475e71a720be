"""What a checkpoint holds of a training besides its arrays, checked field by field before any of it is used.

A file with a valid checksum may still have been made by hand, so each value is tested for its type and range,
and those that depend on each other against each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from overlap_train._checkpoint.container import CheckpointState, shortened
from overlap_train._support.arguments import is_count
from overlap_train.errors import CheckpointCorruptError

_LARGEST_LAG = 2**31 - 1

# An epoch begins at most two passes over the data, one before it and one at its end.
_PASSES_OF_AN_EPOCH = 3
# How many times larger `steps_per_epoch` may have been in the run that wrote the checkpoint; that is allowed.
_LONGER = 1024
_LENGTHS = ("fit.steps_per_epoch", "compile.steps_per_execution")
_LARGEST_NUMBER = 1 << 64  # in a log; what prints it takes it for a float

# The fields of a cursor's state.
_CURSOR = ("drawn", "seen", "open", "epochs", "within", "steps")


@dataclass(frozen=True)
class Extent:
    """How long the epochs of a training are, as far as that is known."""

    num_batches: int | None = None  # in one pass over the data
    steps_per_epoch: int | None = None  # that the user asked for
    group: int = 1  # steps that are always made together, as long as the data lasts
    configuration: Mapping[str, str] = field(default_factory=dict)

    def most_steps(self, epochs: int, configuration: Any) -> int | None:
        """Return how many steps epochs can have had in a run of such a configuration; None if any number."""
        if self.num_batches:
            return epochs * self.num_batches  # an epoch ends with the pass
        if not self.steps_per_epoch:
            return None
        most = epochs * -(-self.steps_per_epoch // self.group) * self.group
        before = configuration if isinstance(configuration, dict) else {}
        alike = all(before.get(name) == self.configuration.get(name) for name in _LENGTHS)
        return most if alike else most * _LONGER


@dataclass(frozen=True)
class TrainingMeta:
    """Where and how a training goes on, as JSON has it."""

    callbacks: list[Any]
    cursor: Mapping[str, Any]
    data: Mapping[str, Any]
    undelivered: list[Any]
    stopped: bool
    logs: Mapping[str, Any]
    max_lag: int
    files: list[Any]
    settings: Mapping[str, str]
    configuration: Mapping[str, str]
    inside: Mapping[str, Any]
    random: Mapping[str, Any]
    in_turn: bool
    attributes: Mapping[str, Any]
    plan: str
    callback_settings: list[dict[str, Any]]

    def as_json(self) -> dict[str, Any]:
        """Return it as the `meta` of a checkpoint."""
        return {part.name: getattr(self, part.name) for part in fields(self)}

    @classmethod
    def of(cls, state: CheckpointState, extent: Extent) -> TrainingMeta:
        """Return the meta of a checkpoint.

        CheckpointCorruptError: a field is missing, or has a value that no training of this extent has
        written.
        """
        meta = {part.name: _of_type(state.meta, part.name, _TYPES[part.name]) for part in fields(cls)}
        cursor, logs, lag = meta["cursor"], meta["logs"], meta["max_lag"]
        begun = cursor.get("within") is True or state.epoch >= 1
        _require(begun, "epoch", state.epoch, "an epoch after the first")
        _check_cursor(cursor, state, extent)
        _require(all(map(is_log, logs.values())), "meta['logs']", logs, "numbers by name")
        _require(is_count(lag, _LARGEST_LAG), "meta['max_lag']", lag, "a number of epochs")
        for name in ("settings", "configuration"):
            are_texts = all(isinstance(text, str) for text in meta[name].values())
            _require(are_texts, f"meta[{name!r}]", meta[name], "texts by name")
        settings = meta["callback_settings"]
        fit = len(settings) == len(meta["callbacks"]) and all(isinstance(each, dict) for each in settings)
        _require(fit, "meta['callback_settings']", settings, "the settings of each callback")
        return cls(**meta | {"cursor": _place(cursor), "undelivered": _undelivered(state, extent)})


_TYPES: Mapping[str, type] = {
    **dict.fromkeys(("callbacks", "undelivered", "files", "callback_settings"), list),
    **dict.fromkeys(("cursor", "data", "logs", "settings", "configuration"), dict),
    **dict.fromkeys(("inside", "random", "attributes"), dict),
    **dict.fromkeys(("stopped", "in_turn"), bool),
    "max_lag": int,
    "plan": str,
}


def _place(cursor: Mapping[str, Any]) -> dict[str, Any]:
    return {name: cursor[name] for name in _CURSOR}


def _undelivered(state: CheckpointState, extent: Extent) -> list[dict[str, Any]]:
    """Return the epochs that wait: they lie right before the present one."""
    entries = state.meta["undelivered"]
    epochs: list[dict[str, Any]] = []
    for epoch, entry in enumerate(entries, start=state.epoch - len(entries)):
        where = f"meta['undelivered'][{len(epochs)}]"
        fits = isinstance(entry, dict) and entry.get("epoch") == epoch >= 0
        _require(fits and is_count(entry.get("step"), state.step), where, entry, f"epoch {epoch}")
        cursor, parts = _of_type(entry, "cursor", dict), _of_type(entry, "parts", dict)
        _check_cursor(cursor, CheckpointState(epoch + 1, entry["step"], meta=state.meta), extent)
        _require(not cursor["within"], where, entry, "the end of an epoch")
        epochs.append({"epoch": epoch, "step": entry["step"], "cursor": _place(cursor), "parts": parts})
    return epochs


def _check_cursor(cursor: Mapping[str, Any], state: CheckpointState, extent: Extent) -> None:
    where = "meta['cursor']"
    drawn, seen, is_open, epochs, within, steps = map(cursor.get, _CURSOR)
    _require(isinstance(is_open, bool), where, cursor, "whether a pass is open")
    _require(isinstance(within, bool), where, cursor, "whether an epoch has begun")
    # Batches that have been used are drawn again, one after another: more would take for ever.
    begun = state.epoch + within  # type: ignore[operator]
    most_steps = extent.most_steps(begun, state.meta.get("configuration"))
    fits = most_steps is None or state.step <= most_steps
    _require(fits, "step", state.step, f"at most {most_steps} steps of {begun} epochs")
    most_passes = _PASSES_OF_AN_EPOCH * (state.epoch + 1)
    _require(is_count(drawn, most_passes), where, cursor, f"at most {most_passes} passes")
    most_seen = min(state.step, extent.num_batches or state.step)
    _require(is_count(seen, most_seen), where, cursor, f"at most {most_seen} batches of a pass")
    _require(drawn > 0 or not is_open, where, cursor, "a pass that is open")  # type: ignore[operator]
    _require(is_count(epochs, state.epoch), where, cursor, f"at most {state.epoch} epochs")
    fits = is_count(steps, state.step) and ((within and is_open) or not steps)
    _require(fits, where, cursor, f"at most {state.step} steps, of an epoch that has begun")


def _of_type(meta: Mapping[str, Any], name: str, kind: type) -> Any:
    value = meta.get(name)
    _require(isinstance(value, kind), f"meta[{name!r}]", value, f"a {kind.__name__}")
    return value


def is_log(value: object) -> bool:
    """Whether a value of JSON is one that a log may hold: a number, a text or none."""
    if type(value) is int:
        return abs(value) <= _LARGEST_NUMBER
    return value is None or isinstance(value, (bool, float, str))


def _require(fits: bool, where: str, value: object, expected: str) -> None:
    if not fits:
        raise CheckpointCorruptError(f"its {where} is {shortened(value)}, where {expected} belongs")
