"""The choice between sharing and copying, where sharing first loses, and the file that keeps it."""

from __future__ import annotations

import json

import pytest

from overlap_train.zero_copy import crossover as module
from overlap_train.zero_copy.crossover import SizeTiming, find_crossover, measure_crossover
from overlap_train.zero_copy.policy import CrossoverCache, choose_sharing


@pytest.mark.parametrize(
    ("mode", "size", "integrated", "crossover", "shared", "reason"),
    [
        ("copy", 1, True, None, False, "asked for"),
        ("zero_copy", 1 << 40, False, 0, True, "asked for"),
        ("auto", 1 << 40, True, None, True, "shares its memory"),
        ("auto", 1, False, None, False, "no crossover has been measured"),
        ("auto", 4096, False, 4096, True, "within the measured crossover of 4096"),
        ("auto", 4097, False, 4096, False, "beyond the measured crossover"),
    ],
)
def test_choice_follows_mode_device_size_and_crossover(mode, size, integrated, crossover, shared, reason):
    choice = choose_sharing(mode, size, integrated=integrated, crossover_bytes=crossover)
    assert choice.zero_copy is shared
    assert reason in choice.reason


def test_crossover_survives_the_process(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    CrossoverCache().put("a GPU", 1)
    assert (tmp_path / "overlap_train" / "zero_copy.json").exists()
    path = tmp_path / "deep" / "cache.json"
    CrossoverCache(path).put("a GPU", 65536)
    CrossoverCache(path).put("another", 0)
    again = CrossoverCache(path)
    assert (again.get("a GPU"), again.get("another"), again.get("third")) == (65536, 0, None)
    assert [file.name for file in path.parent.iterdir()] == ["cache.json"]


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"a GPU": "x"}', '{"a GPU": -1}', '{"a GPU": true}', "\x00\xff"]
)
def test_damaged_cache_counts_as_empty(tmp_path, content):
    path = tmp_path / "cache.json"
    path.write_text(content, encoding="latin-1")
    cache = CrossoverCache(path)
    assert cache.get("a GPU") is None
    cache.put("a GPU", 1)
    assert json.loads(path.read_text()) == {"a GPU": 1}


def test_crossover_is_where_sharing_first_loses():
    timings = [
        SizeTiming(4096, 2.0, 1.0),
        SizeTiming(8192, 2.0, 1.9),
        SizeTiming(16384, 2.0, 2.5),
        SizeTiming(32768, 2.0, 1.0),
    ]
    assert find_crossover(timings) == 8192
    assert find_crossover(timings[::-1]) == 8192
    assert find_crossover(timings[2:]) == 0
    assert find_crossover([]) == 0
    assert find_crossover([SizeTiming(4096, 1.0, 1.0)]) == 0, "as quick is not quicker"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"sizes": []}, ValueError, "sizes is empty"),
        ({"sizes": [6]}, ValueError, r"sizes.* must be positive multiples of 4; got 6"),
        ({"sizes": [0]}, ValueError, "must be at least 4"),
        ({"sizes": 4096}, TypeError, "sizes must be a sequence"),
        ({"repeats": 0}, ValueError, "repeats must be at least 1"),
        ({"kernel": 3}, TypeError, "kernel must be"),
        ({"keep": "yes"}, TypeError, "keep must be"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(arguments, error, message):
    with pytest.raises(error, match=message):
        measure_crossover(**arguments)


class Backend:
    attributes = "a GPU"


class Kept:
    def __init__(self):
        self.put_in = []

    def put(self, key, value):
        self.put_in.append((key, value))


@pytest.mark.parametrize("keep", [True, False])
def test_what_was_measured_is_kept_for_the_choice(keep, monkeypatch):
    kept, asked = Kept(), []

    def time(size, repeats, kernel):
        asked.append((size, repeats, kernel))
        return SizeTiming(size, 2.0, 1.0 if size < 9000 else 3.0)

    monkeypatch.setattr(module, "CudaBackend", Backend)
    monkeypatch.setattr(module, "shared_pool", lambda name: type("Pool", (), {"backend": Backend()}))
    monkeypatch.setattr(module.tf.config, "list_logical_devices", lambda kind: ["GPU:0"])
    monkeypatch.setattr(module, "crossover_key", lambda attributes: f"key of {attributes}")
    monkeypatch.setattr(module, "crossovers", kept)
    monkeypatch.setattr(module, "_time", time)
    found = measure_crossover([16384, 4096, 8192], repeats=3, keep=keep)
    assert found.crossover_bytes == 8192
    assert [timing.size_bytes for timing in found.timings] == [4096, 8192, 16384]
    assert [each[:2] for each in asked] == [(4096, 3), (8192, 3), (16384, 3)]
    assert kept.put_in == ([("key of a GPU", 8192)] if keep else [])
