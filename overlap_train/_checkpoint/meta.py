"""What a checkpoint says of a training beside its arrays, checked field by field before any of it is used.

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

__all__ = ["Extent", "TrainingMeta", "is_log"]

_LARGEST_LAG = 2**31 - 1
_DEEPEST_LOG = 8

# An epoch begins at most two passes over the data, one before it and one at its end.
_PASSES_OF_AN_EPOCH = 3
# `steps_per_epoch` may have been larger in the run that wrote the checkpoint, which is told; so many times.
_LONGER = 1024
_CONFIGURED = ("fit.steps_per_epoch", "compile.steps_per_execution")
_LARGEST_NUMBER = 1 << 64  # in a log; what prints it takes it for a float

# What a cursor's state is made of.
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
        alike = all(before.get(name) == self.configuration.get(name) for name in _CONFIGURED)
        return most if alike else most * _LONGER


@dataclass(frozen=True)
class TrainingMeta:
    """Where and how a training goes on, as JSON has it."""

    callbacks: list[Any]
    cursor: Mapping[str, Any]
    stopped: bool
    logs: Mapping[str, Any]
    max_lag: int
    files: list[Any] = field(default_factory=list)
    data: Mapping[str, Any] = field(default_factory=lambda: {"dict": []})
    undelivered: list[Any] = field(default_factory=list)
    settings: Mapping[str, str] = field(default_factory=dict)
    configuration: Mapping[str, str] = field(default_factory=dict)
    inside: Mapping[str, Any] = field(default_factory=lambda: {"dict": []})
    random: Mapping[str, Any] = field(default_factory=lambda: {"dict": []})
    in_turn: bool = False
    attributes: Mapping[str, Any] = field(default_factory=dict)
    plan: str = ""
    callback_settings: list[dict[str, Any]] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return it as the `meta` of a checkpoint."""
        return {part.name: getattr(self, part.name) for part in fields(self)}

    @classmethod
    def of(cls, state: CheckpointState, extent: Extent | None = None) -> TrainingMeta:
        """Return what a checkpoint says.

        CheckpointCorruptError: a field is missing, or has a value that no training of this extent has
        written.
        """
        meta, extent = state.meta, extent or Extent()
        cursor = _of_type(meta, "cursor", dict)
        _require(
            cursor.get("within") is True or state.epoch >= 1, "epoch", state.epoch, "an epoch after the first"
        )
        _check_cursor(cursor, state, extent)
        logs = _of_type(meta, "logs", dict)
        _require(is_log(list(logs.values())), "meta['logs']", logs, "numbers by name")
        lag = meta.get("max_lag")
        _require(is_count(lag, _LARGEST_LAG), "meta['max_lag']", lag, "a number of epochs")
        return cls(
            callbacks=_of_type(meta, "callbacks", list),
            cursor=_place(cursor),
            stopped=_of_type(meta, "stopped", bool),
            logs=logs,
            max_lag=int(meta["max_lag"]),
            files=_of_type(meta, "files", list),
            data=_of_type(meta, "data", dict),
            undelivered=_undelivered(state, extent),
            settings=_texts(meta, "settings"),
            configuration=_texts(meta, "configuration"),
            inside=_of_type(meta, "inside", dict),
            random=_of_type(meta, "random", dict),
            in_turn=_of_type(meta, "in_turn", bool),
            attributes=_of_type(meta, "attributes", dict),
            plan=_of_type(meta, "plan", str),
            callback_settings=_settings(meta),
        )


def _place(cursor: Mapping[str, Any]) -> dict[str, Any]:
    return {name: cursor[name] for name in _CURSOR}


def _undelivered(state: CheckpointState, extent: Extent) -> list[dict[str, Any]]:
    """Return the epochs that wait: they lie right before the present one."""
    entries = _of_type(state.meta, "undelivered", list)
    first, checked = state.epoch - len(entries), []
    for number, entry in enumerate(entries):
        where = f"meta['undelivered'][{number}]"
        fits = isinstance(entry, dict) and entry.get("epoch") == first + number >= 0
        _require(fits and is_count(entry.get("step"), state.step), where, entry, f"epoch {first + number}")
        cursor, parts = _of_type(entry, "cursor", dict), _of_type(entry, "parts", dict)
        end = CheckpointState(first + number + 1, entry["step"], meta=state.meta)
        _check_cursor(cursor, end, extent)
        _require(not cursor.get("within"), where, entry, "the end of an epoch")
        step, place = int(entry["step"]), _place(cursor)
        checked.append({"epoch": first + number, "step": step, "cursor": place, "parts": parts})
    return checked


def _check_cursor(cursor: Mapping[str, Any], state: CheckpointState, extent: Extent) -> None:
    where = "meta['cursor']"
    drawn, seen, is_open, epochs, within, steps = map(cursor.get, _CURSOR)
    _require(isinstance(is_open, bool), where, cursor, "whether a pass is open")
    # What has been drawn and used is drawn again, one after another: more would take for ever.
    begun = state.epoch + (cursor.get("within") is True)
    most_steps = extent.most_steps(begun, state.meta.get("configuration"))
    if most_steps is not None:
        _require(
            state.step <= most_steps, "step", state.step, f"at most {most_steps} steps of {begun} epochs"
        )
    most_passes = _PASSES_OF_AN_EPOCH * (state.epoch + 1)
    _require(is_count(drawn, most_passes), where, cursor, f"at most {most_passes} passes")
    length = extent.num_batches
    most_seen = state.step if length is None else min(state.step, length)
    _require(is_count(seen, most_seen), where, cursor, f"at most {most_seen} batches of a pass")
    _require(drawn > 0 or not is_open, where, cursor, "a pass that is open")  # type: ignore[operator]
    _require(is_count(epochs, state.epoch), where, cursor, f"at most {state.epoch} epochs")
    _require(isinstance(within, bool), where, cursor, "whether an epoch has begun")
    made = is_count(steps, state.step) and ((within and is_open) or not steps)
    _require(made, where, cursor, f"at most {state.step} steps, of an epoch that has begun")


def _of_type(meta: Mapping[str, Any], name: str, kind: type) -> Any:
    value = meta.get(name)
    _require(isinstance(value, kind), f"meta[{name!r}]", value, f"a {kind.__name__}")
    return value


def _settings(meta: Mapping[str, Any]) -> list[dict[str, Any]]:
    settings: list[Any] = _of_type(meta, "callback_settings", list)
    fit = len(settings) == len(meta["callbacks"]) and all(isinstance(each, dict) for each in settings)
    _require(fit, "meta['callback_settings']", settings, "the settings of each callback")
    return settings


def _texts(meta: Mapping[str, Any], name: str) -> dict[str, str]:
    texts: dict[str, str] = _of_type(meta, name, dict)
    fit = all(isinstance(text, str) for text in texts.values())
    _require(fit, f"meta[{name!r}]", texts, "texts by name")
    return texts


def is_log(value: object, depth: int = 0) -> bool:
    """Whether a value of JSON is one that a log may hold: a number, a text, none, or a list of these."""
    if isinstance(value, list):
        return depth < _DEEPEST_LOG and all(is_log(item, depth + 1) for item in value)
    if type(value) is int:
        return abs(value) <= _LARGEST_NUMBER
    return value is None or isinstance(value, (bool, float, str))


def _require(fits: bool, where: str, value: object, expected: str) -> None:
    if not fits:
        raise CheckpointCorruptError(f"its {where} is {shortened(value)}, where {expected} belongs")
