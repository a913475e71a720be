"""The comparison, shrunk; no time is asserted."""

import json
import sys

import pytest

from scripts.bench import zero_copy as comparison
from scripts.bench import zero_copy_training
from scripts.bench.zero_copy_handover import HandOver, measure_hand_overs
from scripts.bench.zero_copy_training import TrainingRun


def test_hand_overs_count_what_they_copy():
    copied = {entry.way: entry.bytes_copied for entry in measure_hand_overs((8192,), budget_s=0.01)}
    assert copied == {
        "convert_to_tensor": 8192,
        "as_tensor": 0,
        "mapped_buffer": 0,
        "as_tensor_misaligned": 8192,
    }


def test_summary_relates_the_right_figures():
    hand_overs = [
        HandOver("as_tensor", 4096, 1, 10.0, 1, 1, 30.0, 0),
        HandOver("as_tensor", 16 << 20, 1, 20.0, 1, 1, 40.0, 0),
        HandOver("convert_to_tensor", 16 << 20, 1, 2000.0, 1, 1, 2400.0, 1),
    ]
    training = [
        TrainingRun("zero_copy", 1, 5.0, 100, 1, 0.5),
        TrainingRun("from_tensor_slices", 1, 10.0, 400, 1, 0.5),
    ]
    assert comparison.summarize(hand_overs, training) == {
        "as_tensor_slowest_size_over_quickest": 2.0,
        "times_as_fast_at_16_mib": 100.0,
        "times_as_fast_to_first_operation_at_16_mib": 60.0,
        "peak_rss_of_zero_copy_over_from_tensor_slices": 0.25,
        "time_of_zero_copy_over_from_tensor_slices": 0.5,
    }
    assert comparison.summarize([], []) == {}


def test_comparison_writes_its_results(tmp_path, capsys):
    arguments = ["--output", str(tmp_path), "--data-gib", "0", "--sizes", "4096", "--budget-s", "0.01"]
    assert comparison.main(arguments) == 0
    results = json.loads((tmp_path / "zero_copy.json").read_text())
    assert results["measured_elsewhere"]["mapped"]["seconds"] == 0.41
    assert "unavailable" in results["gpu"] or results["gpu"]["one_pass"]["timings"]
    assert results["training_unavailable"] == "--data-gib is 0"
    assert (tmp_path / "hand_over.png").stat().st_size > 0
    assert "Measured elsewhere" in capsys.readouterr().out


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")
def test_all_ways_train_alike(tmp_path):
    path = tmp_path / "images.npy"
    zero_copy_training._write(path, 10 * zero_copy_training.BATCH)
    runs = [zero_copy_training._train(way, path) for way in zero_copy_training.WAYS]
    for alike in (zero_copy_training.BY_HAND, zero_copy_training.BY_FIT):
        losses = [run.loss for run in runs if run.way in alike]
        assert losses == pytest.approx([losses[0]] * len(alike), rel=1e-3)
    assert runs[0].data_bytes == 10 * zero_copy_training.BATCH * zero_copy_training.FEATURES


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")
def test_children_need_less_memory_and_the_file_is_deleted(tmp_path):
    ways = ("from_tensor_slices_batched", "zero_copy")
    theirs, ours = zero_copy_training.compare_training(1 << 30, ways=ways, folder=str(tmp_path))
    assert ours.peak_rss_bytes < theirs.peak_rss_bytes / 2
    assert not list(tmp_path.iterdir())


def test_full_disk_is_told_before_anything_is_written(tmp_path):
    with pytest.raises(OSError, match="2 GiB more"):
        zero_copy_training.compare_training(1 << 60, folder=str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_too_little_memory_spoils_no_other_result(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise MemoryError("made up")

    monkeypatch.setattr(comparison, "compare_training", refuse)
    arguments = ["--output", str(tmp_path), "--sizes", "4096", "--budget-s", "0.01"]
    assert comparison.main(arguments) == 0
    assert "No epoch was trained: made up" in (tmp_path / "zero_copy.md").read_text()


def test_way_that_fails_or_trains_differently_is_an_error(tmp_path, monkeypatch):
    with pytest.raises(RuntimeError, match="nonsense"):
        zero_copy_training.compare_training(8 << 20, ways=["nonsense"], folder=str(tmp_path))
    losses = iter([1.0, 2.0])
    ways = ["zero_copy", "from_tensor_slices_batched"]
    monkeypatch.setattr(
        zero_copy_training, "_run_child", lambda way, path: TrainingRun(way, 1, 1.0, 1, 1, next(losses))
    )
    with pytest.raises(RuntimeError, match="trained differently"):
        zero_copy_training.compare_training(8 << 20, ways=ways, folder=str(tmp_path))
