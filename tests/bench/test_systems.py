"""Hazards of unequal contests: a system that learns nothing, sees other data, or keeps no score."""

import time
from dataclasses import replace

import numpy as np
import pytest

from scripts.bench import compare_child, contenders, tasks
from scripts.bench.systems import DEFAULT_SYSTEMS
from scripts.bench.workloads import WORKLOADS


@pytest.fixture(autouse=True)
def small_workloads(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("TFDS_DATA_DIR", raising=False)
    monkeypatch.setattr("overlap_train.configure", lambda: None)  # this process has begun long ago
    monkeypatch.setitem(WORKLOADS, "mlp", replace(WORKLOADS["mlp"], quick_sizes=(1_280, 330)))


def run(workload, system, cache_dir, *, whole=False):
    job = {"threads": 2, "repeat": 0, "epochs": 2, "quick": True, "cache_dir": str(cache_dir)}
    return compare_child.train(workload, system, whole=whole, **job)


@pytest.mark.nightly
@pytest.mark.parametrize("system", DEFAULT_SYSTEMS)
# The paper's and the overlapped one are run below.
@pytest.mark.by_default("keras-numpy")
def test_each_system_trains_validates_and_keeps_score(system, tmp_path):
    figures = run("mlp", system, tmp_path)
    assert figures["wall_s"] > 0
    assert figures["cpu_s"] > 0
    assert figures["peak_rss_bytes"] > 50 << 20
    # Ten classes by chance are 0.1; three epochs on 1,280 examples come well above that.
    assert 0.25 < figures["val_accuracy"] < 1.0
    assert 0.0 < figures["val_loss"] < 2.3


def test_trainer_is_timed_for_as_many_validations_as_trainings(tmp_path):
    contender = contenders.Overlap(WORKLOADS["mlp"], WORKLOADS["mlp"].task(tmp_path, quick=True), threads=2)
    wall_s, _ = contender.measure(2)
    end_s = time.monotonic()
    spans = contender.trainer.recorder.spans()
    timed = [span for span in spans if span.start_s >= end_s - wall_s]
    assert {span.epoch for span in timed if span.name == "train"} == {1, 2}
    assert {span.epoch for span in spans if span.name == "validate"} == {1, 2}
    assert any(note.startswith("plan: ") for note in contender.outcome().notes)


@pytest.mark.nightly
def test_papers_scheme_scores_the_weights_that_its_epoch_ended_with(tmp_path):
    workload = replace(WORKLOADS["mlp"], quick_sizes=(1_280, 320))
    contender = contenders.Paper(workload, workload.task(tmp_path, quick=True), threads=2)
    contender.measure(2)
    outcome = contender.outcome()
    # Parts of equal size, so that the plain average is the right one.
    validation = contender.task.validation
    loss, accuracy = contender.model.evaluate(validation.x, validation.y, verbose=0)
    assert outcome.val_loss == pytest.approx(loss, rel=1e-4)
    assert outcome.val_accuracy == pytest.approx(accuracy)


@pytest.mark.parametrize("name", ["teacher", "scenes", "sequences"])
def test_made_up_data_is_the_same_each_time_and_has_no_empty_class(name, tmp_path):
    first, second = (getattr(tasks, name)(tmp_path, 40, 20) for _ in range(2))
    assert (len(first.train), len(first.validation)) == (40, 20)
    np.testing.assert_array_equal(first.train.x, second.train.x)
    np.testing.assert_array_equal(first.validation.y, second.validation.y)
    assert len(np.unique(first.train.y)) >= 2
    assert "MNIST" not in first.source
