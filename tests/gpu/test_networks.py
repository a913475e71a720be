"""Which fits are compared on a card, what becomes of one that fails, and what the page concludes."""

from __future__ import annotations

import itertools

import pytest

from scripts.gpu import evidence, network_stages
from scripts.gpu.epoch_profile import LOOPS, per_step
from scripts.gpu.kernel_stages import medians_of_calls
from scripts.gpu.network_stages import Fit, fits, fits_on_jax, further_fits, page_of_networks
from scripts.gpu.stages import Context, OutOfTime, Record

REAL = ("resnet50", "efficientnetb0", "unet", "transformer")


def context(directory, *, left_s=300.0) -> Context:
    record = Record(directory, "networks", fingerprint="", emulated=True)
    deadline_s = network_stages.time.monotonic() + left_s
    return Context(record, directory, emulate=True, quick=True, deadline_s=deadline_s)


def test_each_network_is_trained_in_each_way() -> None:
    names = [str(fit) for fit in (*fits(), *fits_on_jax(), *further_fits())]
    assert len(names) == len(set(names))
    for network, precision, data in itertools.product(
        REAL, ("float32", "mixed_float16"), ("arrays", "tf.data")
    ):
        for system in ("keras", "keras_xla", "in_step", "overlap"):
            assert f"{network} {precision} {data} {system}" in names
        for system in ("divided", "auto", "keras_jax"):
            assert (f"{network} {precision} {data} {system}" in names) is (data == "arrays")


def test_a_fit_that_fails_is_a_row_and_the_next_one_follows(tmp_path, monkeypatch) -> None:
    wrong = [Fit("no such network", "float32", "arrays", system) for system in ("keras", "in_step")]
    monkeypatch.setattr(network_stages, "fits", lambda: wrong)
    where = context(tmp_path)
    assert network_stages.networks(where) == {"fits": 2}
    assert [row["wrong"] for row in where.record.rows] == [["KeyError: 'no such network'"]] * 2
    assert page_of_networks(where.record.rows).count("KeyError") == 2


def test_a_fit_out_of_time_is_ended_and_is_no_row(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(network_stages, "fits", lambda: [Fit("mnist", "float32", "arrays", "keras")])
    where = context(tmp_path, left_s=0.5)
    with pytest.raises(OutOfTime, match="mnist float32 arrays keras"):
        network_stages.networks(where)
    assert where.record.rows == []


def row_of(system, seconds, *, network="unet", **more):
    names = {"network": network, "precision": "float32", "data": "arrays", "system": system}
    return {"key": system, **names, "first_s": 9.0, "more_s": seconds, "said": [], **more}


@pytest.mark.parametrize(
    ("overlap_s", "emulated", "verdict"),
    [(9.0, {}, "pays"), (9.9, {}, "no"), (9.0, {"emulated": True}, "none: emulated")],
)
def test_the_page_says_where_it_pays_to_overlap(overlap_s, emulated, verdict) -> None:
    said = {"said": ["validating in step with the training from epoch 2 on"]}
    rows = [
        row_of("keras", 20.0),
        row_of("in_step", 10.0),
        row_of("overlap", overlap_s),
        row_of("auto", 10.0, **said),
    ]
    text = page_of_networks([row | emulated for row in rows])
    ratio = f"{overlap_s / 10:.3g}"
    assert f"| unet | float32 | arrays | {ratio} |  | 1 | 2 | {verdict} |" in text
    assert "| auto | 9 | 10 | yes |" in text


@pytest.mark.parametrize(
    ("percent", "seconds", "met"), [(85.0, 1.9, "met"), (70.0, 1.9, "missed"), (85.0, 2.1, "missed")]
)
def test_an_epoch_on_the_card_has_its_bars(percent, seconds, met) -> None:
    row = row_of("resident", seconds, network="mnist", gpu_percent=percent)
    assert f"(busy 80%, ten epochs in 2 s): {met}." in page_of_networks([row])


def test_times_next_to_cudnn_are_the_medians_of_three_calls() -> None:
    def call(ours, theirs):
        times = {
            name: [0.0, ms, 9.0]
            for name, ms in zip(evidence._CONTESTANTS, [ours, ours, theirs, theirs], strict=True)
        }
        layer = {"network": "unet", "layer": "a layer", "direction": "forward", "gflop": 1.0}
        return {"key": "unet 0 forward", **layer, "milliseconds_quartiles": times}

    rows = [call(1.0, 2.0), call(1.0, 6.0), call(3.0, 3.0)]
    (row,) = medians_of_calls(rows)
    assert row["ratios"] == {"ours_fp32": 3.0, "ours_tf32": 3.0}
    assert "Medians of 3 calls" in evidence._timing(rows)


@pytest.mark.nightly
def test_an_epoch_has_no_host_work_between_its_steps() -> None:
    """Compiled by XLA, its loop is one operation; on TensorFlow's executor, no Python runs at least."""
    keras, many_steps, ours, compiled = (per_step(loop) for loop in LOOPS)
    assert keras["python_calls"] > many_steps["python_calls"] > 1
    assert ours["python_calls"] < 0.5, "the fit itself may call a few more or less"
    assert compiled["python_calls"] < 0.5
    assert min(loop["operations"] for loop in (keras, many_steps, ours)) > 10
    assert compiled["operations"] == 0
