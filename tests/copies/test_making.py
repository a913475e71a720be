"""A state that was made by hand is refused when it is read, or put back like one that was captured."""

from __future__ import annotations

import functools
import json

import keras
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from overlap_train._callbacks.state import capture, restore_all
from overlap_train._copies.packing import pack, unpack
from overlap_train.errors import CheckpointCorruptError, CheckpointMismatchError
from tests.checkpoint.crafting import PACKED, SCALARS

ARRAYS = {
    "float": np.zeros(3, np.float32),
    "one": np.array(1.5),
    "text": np.array(["a", "b"]),
    "bytes": np.array([b"a"]),
    "time": np.array("2026-01-02", "M8[D]"),
    "flag": np.array([True]),
    "complex": np.array([1j]),
    "doubles": np.zeros(9),
    "longs": np.arange(9),
}
TEXTS = [
    "2026-01-02",
    "2026-01-02T03:04:05",
    "12:30:00",
    "UTC",
    "Europe/Berlin",
    "00ff",
    16 * "0f",
    "0x1f",
    "i",
]
KINDS = [
    *dict.fromkeys([*PACKED, "time", "timedelta", "ellipsis", "posix_path", "windows_path", "unheard of"])
]
LISTS = functools.partial(st.lists, max_size=4)
PARTS = st.recursive(
    st.sampled_from([*SCALARS, *ARRAYS, *TEXTS, "builtins:dict", "collections:OrderedDict", "Random"]),
    lambda inner: LISTS(inner) | st.builds(lambda k, v: {k: v}, st.sampled_from(KINDS), inner | LISTS(inner)),
    max_leaves=12,
)


class Holder(keras.callbacks.Callback):
    """Remembers one value."""

    def __init__(self):
        super().__init__()
        self.value: object = Items()


def goes_round(parts):
    """Tells whether a value is read; what is read has to be put back, and captured and written again."""
    described = [{"kind": "Holder", "values": {"value": parts}, "left_out": [], "sharing": True}]
    try:
        states = unpack(dict(ARRAYS), described)
    except CheckpointCorruptError:
        return False
    holder = Holder()
    try:
        restore_all([holder], states)
    except (CheckpointCorruptError, CheckpointMismatchError):
        return False
    arrays, again = pack([capture(holder)])
    unpack(arrays, json.loads(json.dumps(again)))
    return True


@given(parts=PARTS)
@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_packed_value_breaks_a_restore(parts):
    goes_round(parts)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@given(parts=PARTS)
@settings(max_examples=50_000, deadline=None, suppress_health_check=list(HealthCheck))
def test_none_of_50000_packed_values_breaks_a_restore(parts):
    goes_round(parts)


@pytest.mark.parametrize(
    ("parts", "taken"),
    [
        (1, True),
        ({"array": "float"}, True),
        ({"slice": [1, None, 2]}, True),
        ({"slice": ["\0", [], None]}, False),
        ({"slice": [{"tuple": [1]}, None, None]}, False),
        ({"datetime": ["2026-01-02T03:04:05", 0, {"timezone": [{"timedelta": [0, 60, 0]}]}]}, True),
    ],
    ids=str,
)
def test_what_is_read_is_what_is_written(parts, taken):
    assert goes_round(parts) is taken


ENDLESS = {"range": [0, 2**50, 1]}


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "parts",
    [
        *({kind: ENDLESS} for kind in ("tuple", "set", "frozenset", "dict", "bytes")),
        *({kind: ENDLESS} for kind in ("fraction", "range", "slice")),
        {"deque": [None, ENDLESS]},
        {"numbers": ["i", ENDLESS]},
        {"generator": ["count", ENDLESS]},
        {"generator": ["count", {"tuple": [ENDLESS]}]},
        {"generator": ["SeedSequence", {"dict": [["entropy", ENDLESS], ["spawn_key", {"tuple": []}],
                                                 ["pool_size", 4], ["n_children_spawned", 0]]}]},
        {"generator": ["MT19937", {"dict": [["seeds", None], ["bits", {"dict": [
            ["bit_generator", "MT19937"], ["state", {"dict": [["key", ENDLESS], ["pos", 0]]}]]}]]}]},
        {"object": ["tests.copies.test_making:Items", False, ENDLESS, {"dict": []}]},
    ],
    ids=lambda parts: f"{parts!r:.60}",
)  # fmt: skip
def test_a_value_without_an_end_is_refused_at_once(parts):
    assert not goes_round(parts)


class Items(list):
    """A list of the user's."""
