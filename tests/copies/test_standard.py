"""Values of the standard library go through a checkpoint and come back as they were."""

from __future__ import annotations

import datetime
import decimal
import fractions
import pathlib
import uuid
import zoneinfo

import keras
import pytest

from overlap_train._callbacks.state import capture
from overlap_train._copies.packing import unpack
from overlap_train._copies.standard import is_standard
from overlap_train.errors import CheckpointCorruptError
from tests.callbacks.hooks import through_disk

UTC = datetime.UTC
BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
VALUES = [
    decimal.Decimal("0.10"),
    decimal.Decimal("NaN"),
    fractions.Fraction(2**70, 3),
    pathlib.Path("runs/best"),
    pathlib.PureWindowsPath("c:/runs"),
    datetime.date(2026, 11, 26),
    datetime.datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=BERLIN),
    datetime.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=datetime.timezone(datetime.timedelta(hours=-3), "x")),
    datetime.datetime(2026, 1, 2, tzinfo=UTC),
    datetime.time(1, 2, 3, 4),
    datetime.timedelta(days=-1, microseconds=5),
    uuid.UUID(int=7),
    range(3, 2**80, 5),
    slice(None, 3),
    ...,
    2**20_000,  # of more digits than Python turns into text
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: f"{type(value).__name__}")
def test_a_value_comes_back(tmp_path, value):
    callback = keras.callbacks.Callback()
    callback.value = {"alone": value, "among": [1, (value,)]}
    state = capture(callback)
    assert state.left_out == ()
    (loaded,) = through_disk([state], tmp_path / "f")
    for found in (loaded.values["value"]["alone"], loaded.values["value"]["among"][1][0]):
        assert repr(found)[:4000] == repr(value)[:4000] if type(value) is not int else found == value
        assert type(found) is type(value)


def test_a_subclass_is_no_standard_value():
    class Named(type(pathlib.Path())):
        pass

    assert not is_standard(Named("a"))
    assert not is_standard(slice([], None))


def test_what_is_too_long_to_be_made_again_is_none():
    assert not is_standard(fractions.Fraction(1 << 20_000, 3))
    assert not is_standard(range(1 << 20_000))


@pytest.mark.parametrize(
    "value",
    [
        {"fraction": [1, 0]},
        {"fraction": ["1", 2]},
        {"decimal": "x"},
        {"zone": "../../etc/passwd"},
        {"zone": "Nowhere/None"},
        {"datetime": ["2026-01-01T00:00:00", 0, "UTC"]},
        {"timedelta": [10**12, 0, 0]},
        {"range": [0, 1, 0]},
        {"range": [0, {"int": "f" * 500_000}, {"int": "f" * 250_000}]},
        {"fraction": [{"int": "7" + "f3" * 250_000}, {"int": "5" + "a1" * 250_000}]},
        {"uuid": "zz"},
        {"path": 3},
        {"int": "0xzz"},
        {"unheard_of": []},
    ],
    ids=lambda value: f"{value}"[:80],
)
def test_parts_that_make_no_value_are_corrupt(value):
    with pytest.raises(CheckpointCorruptError, match="is invalid"):
        unpack({}, [{"kind": "a", "values": {"x": value}, "left_out": []}])
