"""The choice between sharing and copying, where sharing first loses, and the file that keeps it."""

import json

import pytest

from overlap_train.zero_copy.buffer import SizeTiming, find_crossover, measure_crossover
from overlap_train.zero_copy.tensors import choose_sharing, keep_crossover, stored_crossovers


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


@pytest.fixture
def stored(monkeypatch, tmp_path):
    """Returns the file of the crossovers, which this process has not read yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    stored_crossovers.cache_clear()
    yield tmp_path / "overlap_train" / "zero_copy.json"
    stored_crossovers.cache_clear()


def test_crossover_survives_the_process(stored):
    keep_crossover("a GPU", 65536)
    stored_crossovers.cache_clear()
    keep_crossover("another", 0)
    stored_crossovers.cache_clear()
    assert stored_crossovers() == {"a GPU": 65536, "another": 0}
    assert [file.name for file in stored.parent.iterdir()] == [stored.name]


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"a GPU": "x"}', '{"a GPU": -1}', '{"a GPU": true}', "\x00\xff"]
)
def test_damaged_cache_counts_as_empty(stored, content):
    stored.parent.mkdir()
    stored.write_text(content, encoding="latin-1")
    assert stored_crossovers() == {}
    keep_crossover("a GPU", 1)
    assert json.loads(stored.read_text()) == {"a GPU": 1}


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
