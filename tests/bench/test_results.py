"""Hazards of results on disk: half-written files, foreign files, merging what does not belong together."""

import json
from dataclasses import replace

import pytest

from scripts.bench import results


def test_what_was_saved_is_loaded_whole(found, tmp_path):
    path = tmp_path / "results.json"
    found.save(path)
    again = results.load(path)
    assert [replace(run, load=()) for run in again.runs] == [replace(run, load=()) for run in found.runs]
    assert again.runs[3].load[1].cpu_percent == found.runs[3].load[1].cpu_percent
    assert again.copy_costs == found.copy_costs
    assert [file.name for file in tmp_path.iterdir()] == ["results.json"]


def test_file_holds_one_record_for_each_run_and_the_ratios(found, tmp_path):
    found.save(tmp_path / "results.json")
    content = json.loads((tmp_path / "results.json").read_text())
    fields = {"workload", "system", "threads", "repeat", "wall_s", "cpu_s", "val_loss", "val_accuracy"}
    assert all(fields | {"hidden_s"} <= set(run) for run in content["runs"])
    ratio = next(r for r in content["ratios"] if (r["system"], r["baseline"]) == ("overlap", "keras-numpy"))
    assert ratio["paired_median"] == pytest.approx(0.5)


def test_foreign_file_is_refused(tmp_path):
    (tmp_path / "other.json").write_text("[]")
    with pytest.raises(ValueError, match="is no results"):
        results.load(tmp_path / "other.json")


def test_merged_repeats_are_counted_on(found):
    merged = results.merge([found, found])
    assert len(merged.runs) == 2 * len(found.runs)
    assert len({(run.system, run.repeat) for run in merged.runs}) == len(merged.runs)
    assert merged.copy_costs == found.copy_costs


def test_runs_of_other_machines_and_sizes_are_not_merged(found):
    elsewhere = replace(found, machine={**found.machine, "cores": 6})
    with pytest.raises(ValueError, match="different machines: 2, 6"):
        results.merge([found, elsewhere])
    full = replace(found, settings={**found.settings, "quick": False})
    with pytest.raises(ValueError, match="--quick"):
        results.merge([found, full])
    with pytest.raises(ValueError, match="no results"):
        results.merge([])
