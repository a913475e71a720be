"""The comparison, shrunk; no time is asserted."""

import json
import sys

import pytest

from scripts.bench import zero_copy as comparison
from scripts.bench import zero_copy_training
from scripts.bench.zero_copy_handover import measure_hand_overs


def hand_over(way, size_bytes, median_us, first_operation_us):
    figures = {"median_us": median_us, "p10_us": 1.0, "p90_us": 1.0, "first_operation_us": first_operation_us}
    return {"way": way, "size_bytes": size_bytes, "repeats": 1, "bytes_copied": 0, **figures}


def trained(way, seconds=1.0, peak_rss_bytes=1, loss=0.5):
    figures = {"seconds": seconds, "peak_rss_bytes": peak_rss_bytes, "start_rss_bytes": 1, "loss": loss}
    return {"way": way, "data_bytes": 1, **figures}


def test_hand_overs_count_what_they_copy():
    copied = {row["way"]: row["bytes_copied"] for row in measure_hand_overs((8192,), budget_s=0.01)}
    copies, shares = ("convert_to_tensor", "as_tensor_misaligned"), ("as_tensor", "mapped_buffer")
    assert copied == dict.fromkeys(copies, 8192) | dict.fromkeys(shares, 0)


def test_summary_relates_the_right_figures():
    large = 16 << 20
    hand_overs = [hand_over("as_tensor", 4096, 10.0, 30.0), hand_over("as_tensor", large, 20.0, 40.0)]
    hand_overs.append(hand_over("convert_to_tensor", large, 2000.0, 2400.0))
    training = [trained("zero_copy", 5.0, 100), trained("from_tensor_slices", 10.0, 400)]
    assert list(comparison.summarize(hand_overs, training).values()) == [2.0, 100.0, 60.0, 0.25, 0.5]
    assert comparison.summarize([], []) == {}


def test_comparison_writes_its_results(tmp_path, capsys):
    arguments = ["--output_dir", str(tmp_path), "--data-gib", "0", "--sizes", "4096", "--budget-s", "0.01"]
    assert comparison.main(arguments) == 0
    results = json.loads((tmp_path / "zero_copy.json").read_text())
    assert results["training_unavailable"] == "--data-gib is 0"
    assert "4 KiB, `as_tensor_misaligned`" in capsys.readouterr().out


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")
def test_all_ways_train_alike(tmp_path):
    path = tmp_path / "images.npy"
    zero_copy_training._write(path, 10 * zero_copy_training.BATCH)
    runs = [zero_copy_training._train(way, path) for way in zero_copy_training.WAYS]
    for alike in (zero_copy_training.BY_HAND, zero_copy_training.BY_FIT):
        losses = [run["loss"] for run in runs if run["way"] in alike]
        assert losses == pytest.approx([losses[0]] * len(alike), rel=1e-3)
    assert runs[0]["data_bytes"] == 10 * zero_copy_training.BATCH * zero_copy_training.FEATURES


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")
def test_children_need_less_memory_and_the_file_is_deleted(tmp_path):
    ways = ("from_tensor_slices_batched", "zero_copy")
    theirs, ours = zero_copy_training.compare_training(1 << 30, ways=ways, folder=str(tmp_path))
    assert ours["peak_rss_bytes"] < theirs["peak_rss_bytes"] / 2
    assert not list(tmp_path.iterdir())


def test_full_disk_is_told_before_anything_is_written(tmp_path):
    with pytest.raises(OSError, match="2 GiB more"):
        zero_copy_training.compare_training(1 << 60, folder=str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_too_little_memory_spoils_no_other_result(tmp_path, monkeypatch, capsys):
    def refuse(*_, **__):
        raise MemoryError("made up")

    monkeypatch.setattr(comparison, "compare_training", refuse)
    arguments = ["--output_dir", str(tmp_path), "--sizes", "4096", "--budget-s", "0.01"]
    assert comparison.main(arguments) == 0
    assert "No epoch was measured: made up" in capsys.readouterr().out
    assert json.loads((tmp_path / "zero_copy.json").read_text())["hand_overs"]


def test_way_that_fails_or_trains_differently_is_an_error(tmp_path, monkeypatch):
    with pytest.raises(RuntimeError, match="exit status 1"):
        zero_copy_training.compare_training(8 << 20, ways=["nonsense"], folder=str(tmp_path))
    losses = iter([1.0, 2.0])
    ways = ["zero_copy", "from_tensor_slices_batched"]
    monkeypatch.setattr(zero_copy_training, "_run_child", lambda way, path: trained(way, loss=next(losses)))
    with pytest.raises(RuntimeError, match="trained differently"):
        zero_copy_training.compare_training(8 << 20, ways=ways, folder=str(tmp_path))
