"""Stages that are cut off, hang, die, or lack what they need; and the page that is made of what is left."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.gpu import evidence, stages, tensorflow_runs
from scripts.gpu.driver import page, table
from scripts.gpu.stages import Context, OutOfTime, Record, Stage, output_of, verdict
from tests.gpu import stage_target as target

ROOT = Path(__file__).parents[2]


def new_record(directory: Path, *, fingerprint: str = "one") -> Record:
    return Record(directory, "stage", fingerprint=fingerprint, emulated=False)


@pytest.mark.parametrize("cut_off", range(1, 20))
def test_row_that_was_cut_short_is_measured_again(tmp_path, cut_off) -> None:
    record = new_record(tmp_path)
    record.add("a", {"value": 1})
    record.add("b", {"value": 2})
    path = tmp_path / "stage.jsonl"
    path.write_bytes(path.read_bytes()[:-cut_off])
    again = new_record(tmp_path)
    assert again.has("a")
    if not again.has("b"):  # without the line's end alone, the row is whole
        again.add("b", {"value": 3})
    assert [row["key"] for row in new_record(tmp_path).rows] == ["a", "b"]


def test_rows_of_other_sources_and_an_end_that_was_cut_short_do_not_count(tmp_path) -> None:
    record = new_record(tmp_path)
    record.add("a", {"wrong": [], "clean": True})
    assert verdict({"stage": "done"}, [record]) == 0
    record.add("b", {"wrong": ["forward"]})
    assert verdict({"stage": "done"}, [record]) == 1
    record.end("done", seconds=1)
    other = new_record(tmp_path, fingerprint="two")
    assert (other.status, other.rows) == (None, [])
    path = tmp_path / "stage.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    again = new_record(tmp_path)
    assert (again.status, [row["key"] for row in again.rows]) == (None, ["a", "b"])


def test_fingerprint_changes_with_a_source_and_with_the_card(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(stages, "ROOT", tmp_path)
    (tmp_path / "native").mkdir()
    (tmp_path / "native" / "kernel.cu").write_text("one")
    stage = Stage("stage", target.good, 1, ("native",))
    first = stage.fingerprint("card")
    assert stage.fingerprint("other card") != first
    (tmp_path / "native" / "kernel.cu").write_text("two")
    assert stage.fingerprint("card") != first


def test_stage_that_is_done_is_skipped_unless_again(tmp_path) -> None:
    names = ["good", "lacks"]
    assert target.go(tmp_path, names) == {"good": "done", "lacks": "unavailable"}
    first = target.record(tmp_path, "good").rows
    assert target.go(tmp_path, names) == {"good": "done", "lacks": "unavailable"}
    assert target.record(tmp_path, "good").rows == first
    target.go(tmp_path, names, again=True)
    assert [row["pid"] for row in target.record(tmp_path, "good").rows] != [row["pid"] for row in first]
    # A repeat that is cut off leaves nothing marked as done.
    states = target.go(tmp_path, names, budget_s=0, again=True)
    assert states == {"good": "not run", "lacks": "not run"}


def test_stage_out_of_time_goes_on_in_the_next_run(tmp_path) -> None:
    assert target.go(tmp_path, ["short_of_time"]) == {"short_of_time": "partial"}
    first = target.record(tmp_path, "short_of_time").rows
    assert target.go(tmp_path, ["short_of_time"]) == {"short_of_time": "done"}
    assert target.record(tmp_path, "short_of_time").rows[:1] == first


def test_stages_that_fail_or_die_do_not_keep_the_others_from_running(tmp_path) -> None:
    states = target.go(tmp_path, ["raises", "dies", "good"])
    assert states == {"raises": "failed", "dies": "failed", "good": "done"}
    assert target.record(tmp_path, "raises").reason == "ArithmeticError: one and one is three"
    died = target.record(tmp_path, "dies")
    assert died.reason == "ended with status 7: the last words"
    assert [row["key"] for row in died.rows] == ["first"]
    assert (tmp_path / "pages").read_text().count("written") == 3
    assert verdict(states, []) == 1


@pytest.mark.nightly
def test_stage_that_hangs_is_ended_and_keeps_its_rows(tmp_path, monkeypatch) -> None:
    """The stage has five seconds to write its row, and would then wait for ever."""
    monkeypatch.setattr(stages, "_GRACE_S", 0.0)
    monkeypatch.setattr(stages, "_LEAST_S", 0.0)
    assert target.go(tmp_path, ["hangs"], limit_s=5) == {"hangs": "partial"}
    record = target.record(tmp_path, "hangs")
    assert (record.reason, len(record.rows)) == ("killed", 1)
    with pytest.raises(ProcessLookupError):
        os.kill(record.rows[0]["pid"], 0)
    assert verdict({"hangs": "partial"}, [record]) == 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_interrupted_run_ends_its_stage_and_writes_the_page(tmp_path, number) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    run = subprocess.Popen(
        [sys.executable, "-m", "tests.gpu.stage_target", "run", str(tmp_path)],
        env=os.environ | {"STAGES": "good hangs good", "PIPE": str(pipe)},
        cwd=ROOT,
    )
    with pipe.open() as stage:  # opens when the stage has written its row
        assert stage.readline() == "row\n"
        run.send_signal(number)
        assert run.wait(60) == 128 + number
        assert stage.read() == ""  # which comes when the stage has ended
    assert [row["key"] for row in target.record(tmp_path, "hangs").rows] == ["first"]
    assert (tmp_path / "pages").read_text().count("written") == 2
    assert target.record(tmp_path, "good").status == "done"


def test_program_that_takes_too_long_is_out_of_time_and_not_failed(tmp_path) -> None:
    context = Context(new_record(tmp_path), tmp_path, emulate=True, quick=True, deadline_s=0.0)
    waits = [sys.executable, "-c", "import threading; threading.Event().wait()"]
    with pytest.raises(OutOfTime, match="out of time in python"):
        output_of(waits, context)
    assert output_of(["echo", "done"], context) == (0, ["done"])


def test_page_says_how_each_stage_ended(tmp_path) -> None:
    names = ("done", "partial", "failed", "unavailable", "cut off", "not run")
    for name in names[:5]:
        record = Record(tmp_path, name, fingerprint="one", emulated=False)
        record.add("a", {"value": 1.23456})
        if name != "cut off":
            record.end(name, seconds=1, reason="" if name == "done" else f"because {name}")

    def text(rows):
        return table(("key", "value"), [(row["key"], row["value"]) for row in rows])

    page(
        tmp_path / "page.md",
        "What was found",
        "command",
        emulated=False,
        stages=[Stage(name, target.good, 1, title=name.capitalize(), text=text) for name in names],
        record=lambda stage: Record(tmp_path, stage.name, fingerprint="one", emulated=False),
        facts={"GPU": "made up"},
    )
    shown = (tmp_path / "page.md").read_text()
    for words in (
        "Out of time after 1 rows; run the command again: because partial.",
        "Failed: because failed.",
        "Not possible here: because unavailable.",
        "Cut off after 1 rows; run the command again.",
        "Not run yet.",
    ):
        assert shown.count(words) == 1
    assert shown.count("| a | 1.23 |") == 5
    assert "mulated" not in shown


@pytest.mark.parametrize(
    "stage", [*evidence.EVIDENCE.stages, *tensorflow_runs.EVIDENCE.stages], ids=lambda stage: stage.name
)
def test_what_decides_a_stages_results_is_there(stage):
    """Its digest is taken on the machine with the GPU, where nobody wants to hear that a folder has moved."""
    assert [source for source in stage.sources if not (ROOT / source).exists()] == []


def test_what_decides_most_takes_six_calls_of_ten_minutes() -> None:
    stages = {stage.name: stage for stage in tensorflow_runs.EVIDENCE.stages}
    calls = [*evidence.EVIDENCE.calls(), *tensorflow_runs.EVIDENCE.calls()]
    within = [name for call in calls[:6] for name in call]
    for name in stages.keys() - {"further"}:
        assert sum(call.get(name, 0.0) for call in calls[:6]) == pytest.approx(stages[name].expected_s), name
    assert all(sum(call.values()) <= 540 for call in calls)
    assert sum(call.get("further", 0.0) for call in calls) == pytest.approx(stages["further"].expected_s)
    plan = tensorflow_runs.EVIDENCE.plan().splitlines()
    assert plan[6] == "Up to here: 6 calls of ten minutes, by times of an H100."
    assert all(name in " ".join(plan[:6]) for name in within)


@pytest.mark.parametrize("by_rows", [True, False])
def test_a_stage_goes_on_in_the_next_call_only_if_it_has_rows(by_rows) -> None:
    stages = [Stage("a", target.good, 1, (), 400.0), Stage("b", target.good, 1, (), 300.0, by_rows=by_rows)]
    calls = dataclasses.replace(evidence.EVIDENCE, stages=stages).calls()
    assert calls == [{"a": 400.0} | ({"b": 110.0} if by_rows else {}), {"b": 190.0 if by_rows else 300.0}]
