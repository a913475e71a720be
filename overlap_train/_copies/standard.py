"""Values of Python's standard library that never change, and what a checkpoint writes for each.

Each kind is written as plain parts and made again by its own constructor from nothing but these. What a file
may name are the kinds of this table, and no class of its own choice.
"""

from __future__ import annotations

import datetime
import decimal
import fractions
import pathlib
import uuid
import zoneinfo
from collections.abc import Callable, Mapping
from types import EllipsisType
from typing import Any, NamedTuple

__all__ = ["is_standard", "made_of", "parts_of"]


# Of integers that are divided by each other as a value is made: that takes the square of their length.
_LONGEST_BITS = 1 << 14


class _Kind(NamedTuple):
    """How one kind of value is written, and made of what has been written."""

    kind: type
    parts: Callable[[Any], Any]
    made: Callable[[Any], Any]


def _without_zone(value: Any) -> list[Any]:
    return [value.replace(tzinfo=None, fold=0).isoformat(), value.fold, value.tzinfo]


def _with_zone(kind: Any) -> Callable[[Any], Any]:
    def made(parts: Any) -> Any:
        text, fold, zone = parts
        if zone is not None and not isinstance(zone, datetime.tzinfo):
            raise TypeError(f"a time zone of type {type(zone).__name__}")
        return kind.fromisoformat(text).replace(fold=fold, tzinfo=zone)

    return made


def _span(parts: Any) -> datetime.timedelta:
    days, seconds, microseconds = parts
    return datetime.timedelta(days, seconds, microseconds)


def _whole(parts: Any) -> list[int]:
    if not all(map(_is_short, parts)):
        raise TypeError("a value of others than whole numbers, or of too long ones")
    return list(parts)


def _is_short(part: Any) -> bool:
    return type(part) is int and part.bit_length() <= _LONGEST_BITS


def _zone(key: Any) -> zoneinfo.ZoneInfo:
    return zoneinfo.ZoneInfo(key)


_KINDS: Mapping[str, _Kind] = {
    "decimal": _Kind(decimal.Decimal, str, decimal.Decimal),
    "fraction": _Kind(
        fractions.Fraction,
        lambda value: [value.numerator, value.denominator],
        lambda parts: fractions.Fraction(*_whole(parts)),
    ),
    "date": _Kind(datetime.date, datetime.date.isoformat, datetime.date.fromisoformat),
    "datetime": _Kind(datetime.datetime, _without_zone, _with_zone(datetime.datetime)),
    "time": _Kind(datetime.time, _without_zone, _with_zone(datetime.time)),
    "timedelta": _Kind(
        datetime.timedelta, lambda value: [value.days, value.seconds, value.microseconds], _span
    ),
    "timezone": _Kind(
        datetime.timezone,
        lambda value: [value.utcoffset(None), value.tzname(None)],
        lambda parts: datetime.UTC if parts == [datetime.timedelta(0), "UTC"] else datetime.timezone(*parts),
    ),
    "zone": _Kind(zoneinfo.ZoneInfo, lambda value: value.key, _zone),
    "uuid": _Kind(uuid.UUID, lambda value: value.hex, uuid.UUID),
    "range": _Kind(
        range,
        lambda value: [value.start, value.stop, value.step],
        lambda parts: range(*_whole(parts)),
    ),
    "slice": _Kind(slice, lambda value: [value.start, value.stop, value.step], lambda parts: slice(*parts)),
    "ellipsis": _Kind(EllipsisType, lambda value: [], lambda parts: ...),
    "path": _Kind(type(pathlib.Path()), str, pathlib.Path),
    "posix_path": _Kind(pathlib.PurePosixPath, str, pathlib.PurePosixPath),
    "windows_path": _Kind(pathlib.PureWindowsPath, str, pathlib.PureWindowsPath),
}
_NAMES = {kind.kind: name for name, kind in _KINDS.items()}


def is_standard(value: Any) -> bool:
    """Whether a value is of one of these kinds, and not of a subclass that may hold more."""
    if type(value) is slice:
        return all(part is None or type(part) is int for part in (value.start, value.stop, value.step))
    if type(value) is fractions.Fraction:
        return _is_short(value.numerator) and _is_short(value.denominator)
    if type(value) is range:
        return all(map(_is_short, (value.start, value.stop, value.step)))
    if type(value) is zoneinfo.ZoneInfo:
        return value.key is not None
    if type(value) in (datetime.datetime, datetime.time):
        return value.tzinfo is None or is_standard(value.tzinfo)
    return type(value) in _NAMES


def parts_of(value: Any) -> tuple[str, Any]:
    """Returns the name of a value's kind, and its parts: numbers, texts, and other standard values."""
    name = _NAMES[type(value)]
    return name, _KINDS[name].parts(value)


def made_of(name: str, parts: Any) -> Any:
    """Returns a value of its parts.

    Raises:
        KeyError: there is no such kind.
        ArithmeticError: the parts are none of this kind; as are `TypeError`, `ValueError` and `OSError`.
    """
    value = _KINDS[name].made(parts)
    if not is_standard(value):  # a slice of lists, say, which is never written
        raise TypeError(f"a {name} of other parts than are written for it")
    return value
