"""What one process has timed serves the others, and a file that says nonsense serves nobody."""

from __future__ import annotations

import json
import os

import pytest

from overlap_train.conv import timing_cache
from overlap_train.conv.shapes import STOCK, ConvKey, Timing

FORWARD = ConvKey("forward", "float32", (8, 6, 6, 2), (3, 3, 2, 4), (1, 1), "SAME", bias=True, relu=True)
GRADIENT = ConvKey("filter_gradient", "float64", (8, 6, 6, 2), (5, 3, 2, 4), (2, 1), "VALID")
TIMINGS = {
    FORWARD: Timing(FORWARD, {STOCK: 2.0, "winograd": 1.0, "direct": 3.0}, "winograd"),
    GRADIENT: Timing(GRADIENT, {STOCK: 2.0, "direct": 3.0}, STOCK),
}


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def file_in(home):
    (found,) = home.rglob("*.json")
    return found


def test_what_is_saved_is_loaded_and_added_to():
    assert timing_cache.load() == {}
    timing_cache.save([TIMINGS[FORWARD]])
    timing_cache.save([TIMINGS[GRADIENT]])
    assert timing_cache.load() == TIMINGS
    timing_cache.remove()
    assert timing_cache.load() == {}
    timing_cache.remove()


def test_a_batch_that_was_assumed_is_the_same_convolution():
    timing_cache.save(TIMINGS.values())
    assumed = ConvKey(
        *(getattr(FORWARD, name) for name in FORWARD.__dataclass_fields__ if name != "batch_assumed")
    )
    assert timing_cache.load()[assumed] == TIMINGS[FORWARD]


@pytest.mark.parametrize("name", ["OVERLAP_TRAIN_CONV_ISA", "OVERLAP_TRAIN_CONV_HELPERS"])
def test_other_kernels_have_other_times(monkeypatch, name):
    timing_cache.save(TIMINGS.values())
    monkeypatch.setenv(name, "portable")
    assert timing_cache.load() == {}


def changed(path, value):
    rows = [
        json.loads(
            json.dumps(
                {"key": FORWARD.__dict__, "milliseconds": TIMINGS[FORWARD].milliseconds, "chosen": "winograd"}
            )
        )
    ]
    target = rows[0]
    for part in path[:-1]:
        target = target[part]
    target[path[-1]] = value
    return json.dumps(rows)


NONSENSE = [
    "",
    "{",
    "[[]]",
    "[null]",
    "[" * 100_000,
    changed(["chosen"], "fastest"),
    changed(["milliseconds", "direct"], -1),
    changed(["milliseconds", "direct"], float("nan")),
    changed(["milliseconds", "direct"], True),
    changed(["milliseconds"], {}),
    changed(["key", "direction"], "sideways"),
    changed(["key", "dtype"], "int8"),
    changed(["key", "padding"], []),
    changed(["key", "input_shape"], [8, 6, 6]),
    changed(["key", "input_shape"], [8, 6, 6, 0]),
    changed(["key", "input_shape"], [8, 6, 6, 2.5]),
    changed(["key", "strides"], None),
    changed(["key", "bias"], "yes"),
]


@pytest.mark.parametrize("text", NONSENSE, ids=range(len(NONSENSE)))
def test_a_damaged_file_is_as_good_as_none_and_is_replaced(home, text):
    timing_cache.save([TIMINGS[FORWARD]])
    file_in(home).write_text(text)
    assert timing_cache.load() == {}
    timing_cache.save([TIMINGS[GRADIENT]])
    assert timing_cache.load() == {GRADIENT: TIMINGS[GRADIENT]}


def test_a_pipe_or_a_directory_in_its_place_is_not_waited_for(home):
    timing_cache.save([TIMINGS[FORWARD]])
    file = file_in(home)
    file.unlink()
    os.mkfifo(file)
    assert timing_cache.load() == {}
    file.unlink()
    file.mkdir()
    assert timing_cache.load() == {}
    timing_cache.save([TIMINGS[FORWARD]])


def test_without_a_home_nothing_is_kept(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", "")
    timing_cache.save(TIMINGS.values())
    assert timing_cache.load() == {}
