"""The choice between sharing and copying, and the file of measured crossovers."""

import json

import pytest

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


def test_unknown_mode_is_refused():
    with pytest.raises(ValueError, match="got 'best'"):
        choose_sharing("best", 1, integrated=False, crossover_bytes=None)


def test_crossover_survives_the_process(tmp_path):
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


def test_place_of_the_cache_follows_the_user(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    CrossoverCache().put("a GPU", 1)
    assert (tmp_path / "overlap_train" / "zero_copy.json").exists()


def test_negative_crossover_is_refused(tmp_path):
    with pytest.raises(ValueError, match="crossover_bytes must be at least 0"):
        CrossoverCache(tmp_path / "x").put("a GPU", -1)
