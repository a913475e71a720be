"""The file of measured plans: kept, and as good as none where it is damaged or out of reach."""

from __future__ import annotations

import json
import os

import pytest

from overlap_train._training import trial
from overlap_train._training.trial import Candidate, CandidateTiming, PlanCache

PLAIN, XLA, SPLIT = Candidate(), Candidate(jit=True), Candidate(splits=4)


ROW = {"splits": 1, "jit": False, "fast": "", "build_s": 1.0, "step_s": 1e-3, "runs": 2}


def content(*, runs=1, key="plan", **row):
    return json.dumps({"key": key, "runs": runs, "timings": [ROW | row]})


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"timings": [{"splits": 1}]}', '{"timings": 3}', "[" * 100_000, "9" * 5000, "\0", "null"]
    + [content(**{name: value}) for name in ROW for value in (None, "x", [], {}, -1, 1e400, float("nan"))]
    + [content(step_s=1e-300), content(step_s=0), content(build_s=1e400), content(splits=10**30)]
    + [content(runs=value) for value in (0, -5, 11, 1e400, 1.5, None)]
    + [content(key="another"), json.dumps({"runs": 1, "timings": [ROW]})],
    ids=lambda text: text[:40],
)
def test_damaged_foreign_and_nonsensical_caches_are_as_good_as_none(tmp_path, text):
    file = tmp_path / "plan.json"
    file.write_text(text, encoding="utf-8")
    if text not in (content(fast="x"), content(step_s=1e400)):  # infinite: it could not be compiled
        assert PlanCache(file).load() == {}
    PlanCache(file).save({PLAIN: CandidateTiming(1.0, 1.0)})
    assert PlanCache(file).load() == {PLAIN: CandidateTiming(1.0, 1.0)}


def test_a_sound_cache_is_read_so_that_the_test_above_can_fail(tmp_path):
    file = tmp_path / "plan.json"
    file.write_text(content(), encoding="utf-8")
    assert PlanCache(file).load() == {PLAIN: CandidateTiming(1.0, 1e-3, 2)}


def test_bytes_that_are_no_text_are_as_good_as_none(tmp_path):
    (tmp_path / "plan.json").write_bytes(b"\xff\xfe\0{}")
    assert PlanCache(tmp_path / "plan.json").load() == {}


def test_a_pipe_in_the_place_of_a_plan_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "plan.json")
    assert PlanCache(tmp_path / "plan.json").load() == {}
    PlanCache(tmp_path / "plan.json").save({PLAIN: CandidateTiming(1.0, 1.0)})
    assert PlanCache(tmp_path / "plan.json").load() == {PLAIN: CandidateTiming(1.0, 1.0)}


def test_a_full_disk_leaves_the_plan_as_it_was(tmp_path, monkeypatch):
    def fail(path, text):
        raise OSError(28, "No space left on device")

    PlanCache(tmp_path / "plan.json").save({PLAIN: CandidateTiming(1.0, 1.0)})
    monkeypatch.setattr(trial, "replace_content", fail)
    PlanCache(tmp_path / "plan.json").save({PLAIN: CandidateTiming(2.0, 2.0)})
    assert PlanCache(tmp_path / "plan.json").load() == {PLAIN: CandidateTiming(1.0, 1.0)}


def test_unwritable_cache_is_no_error(tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    cache = PlanCache(tmp_path / "file" / "plan.json")
    cache.save({PLAIN: CandidateTiming(1.0, 1.0)})
    assert cache.load() == {}


def test_cache_keeps_what_was_saved(tmp_path):
    timings = {PLAIN: CandidateTiming(1.0, 0.5), SPLIT: CandidateTiming(2.0, 0.25)}
    PlanCache(tmp_path / "a" / "plan.json").save(timings)
    assert PlanCache(tmp_path / "a" / "plan.json").load() == timings
    assert json.loads((tmp_path / "a" / "plan.json").read_text())["timings"][0]["splits"] == 1
