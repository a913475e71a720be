"""Hazards of going on: a torn line, runs of another machine, a run done twice, two writers."""

import itertools
import json
import re

import pytest

from scripts.bench import journal as journals
from scripts.bench import start
from scripts.bench import zero_copy as comparison
from scripts.bench.journal import Journal

ARGUMENTS = {"epochs": 2, "systems": ("a", "b")}


@pytest.fixture
def begin(tmp_path, machine):
    """Opens the journal of one folder."""
    return lambda **changes: Journal(
        tmp_path,
        machine | changes.pop("machine", {}),
        ARGUMENTS | changes.pop("arguments", {}),
        resume=changes.pop("resume", True),
    )


def counted():
    """Returns what counts how often it is called."""
    numbers = itertools.count(1)
    return lambda: next(numbers)


def test_a_finished_run_is_read_back_and_not_run_again(begin):
    work = counted()
    with begin() as first:
        assert [first.once(key, work) for key in ("one", "two", "one")] == [1, 2, 1]
    with begin() as again:
        assert again.found == 2
        assert [again.once(key, work) for key in ("two", "three", "one")] == [2, 3, 1]
        with pytest.raises(ValueError, match="another comparison is writing"):
            begin()
        # A value that does not count is worked out again, and the new one kept.
        assert again.once("one", work, keep=lambda value: value > 1) == 4
    with begin() as third:
        assert third.once("one", work, keep=lambda value: value > 1) == 4


@pytest.mark.parametrize("left", [b'{"key": "two", "val', b"{", b'{"key": "two", "value": 2, "others": 0.0}'])
def test_a_line_that_a_kill_has_torn_is_dropped(begin, tmp_path, left):
    work = counted()
    with begin() as first:
        first.once("one", work)
    with (tmp_path / "runs.jsonl").open("ab") as file:
        file.write(left)
    with begin() as again:
        assert [again.once(key, work) for key in ("one", "two")] == [1, 2]
    with begin() as third:
        assert third.found == 2


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"machine": {"cores": 6}}, "cores was 2, is 6"),
        ({"machine": {"cpu": "Another"}}, "CPU was 'An Imagined CPU', is 'Another'"),
        ({"machine": {"versions": {"tensorflow": "2.22.0"}}}, "tensorflow was '2.21.0', is '2.22.0'"),
        ({"machine": {"versions": {}}}, "tensorflow was '2.21.0', is None"),
        ({"arguments": {"epochs": 3}}, "--epochs was 2, is 3"),
        ({"arguments": {"systems": ("a",)}}, "--systems was"),
        ({"arguments": {"new": 1}}, "--new was None, is 1"),
    ],
)
def test_runs_that_do_not_belong_together_are_refused_by_name(begin, tmp_path, changes, named, monkeypatch):
    with begin() as first:
        first.once("one", counted())
    before = (tmp_path / "runs.jsonl").read_bytes()
    with pytest.raises(ValueError, match="without --resume") as refused:
        begin(**changes)
    assert named in str(refused.value)
    assert (tmp_path / "runs.jsonl").read_bytes() == before
    (tmp_path / "overlap_train").mkdir()
    (tmp_path / "overlap_train" / "step.py").write_text("")
    monkeypatch.setattr(journals, "_ROOT", tmp_path)
    with pytest.raises(ValueError, match="the sources' digest was"):
        begin()


def test_each_run_is_run_once_however_often_the_comparison_is_cut_off(tmp_path, monkeypatch, published):
    log, warmed = [], []

    def child(system, network, epochs, cache, options):
        if system == "ours" and cache not in warmed:
            warmed.append(cache)
            return {}
        if len(log) == most:
            raise KeyboardInterrupt
        log.append(f"{system} {network} {epochs}")
        return {"seconds": {"first": 1.0, "second": 2.0}, "peak_mib": 100.0, "messages": []}

    monkeypatch.setattr(start, "_run", child)
    arguments = ["--networks=mlp", "--repeats=2", "--caches=warm", "--calls=first,second", "--resume"]
    arguments.append(f"--output_dir={tmp_path / 'out'}")
    for most in range(4):
        with pytest.raises(KeyboardInterrupt):
            start.main(arguments)
        assert len(log) == most
    most = 4
    start.main(arguments)
    assert len(log) == 4
    assert len(warmed) == 3, "each call that runs ours has to warm its cache"
    start.main([*arguments, "--publish"])
    (page,) = published.glob("2*.md")
    links = re.findall(r"\]\((?!\.\.|http)([^)]*)\)", page.read_text())
    assert links
    assert [link for link in links if not (published / link).exists()] == []


def test_comparison_writes_its_results(tmp_path, capsys):
    arguments = ["--output_dir", str(tmp_path), "--sizes", "4096", "--budget-s", "0.01"]
    assert comparison.main(arguments) == 0
    assert json.loads((tmp_path / "zero_copy.json").read_text())
    assert "4 KiB, `as_tensor_misaligned`" in capsys.readouterr().out
