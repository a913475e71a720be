"""What records say of themselves."""

from __future__ import annotations

import pytest

from overlap_train._fit import lag
from overlap_train._inspection import effects
from overlap_train.records import Explanation, ValidationResult, flat, prefixed


def explanation(in_step):
    return Explanation(
        validates=True,
        max_lag=0 if in_step else 1,
        in_step=in_step,
        plan=None,
        steps_per_epoch=None,
        workers=1,
        snapshot_bytes=0,
        data_bytes=0,
        tracing_s=0.0,
    )


@pytest.mark.parametrize(
    ("in_step", "remedy"),
    [
        (None, None),
        ("metrics keep state that reset_state does not set back (total)", None),
        ("the validation prints (PrintV2 in 'print'); print in a callback", "print in a callback"),
        ("f needs the model itself: an effect; more of it; pass clone", "pass clone"),
    ],
)
def test_the_remedy_stands_behind_the_last_semicolon(in_step, remedy):
    assert explanation(in_step).remedy == remedy


@pytest.mark.parametrize("remedy", [lag._REMEDY, *(remedy for _, _, remedy in effects._KINDS)])
def test_a_remedy_is_one_piece(remedy):
    assert "; " not in remedy
    assert explanation(f"something is so; {remedy}").remedy == remedy


def result(metrics, **options):
    return ValidationResult(metrics, **options)


def test_nested_metrics_of_a_named_set_are_flattened():
    assert flat({"a": 1, "b": {"c": 2, "d": {"e": 3}}}) == {"a": 1, "c": 2, "e": 3}
    results = {"": result({"loss": 1, "n": {"a": 2}}), "clean": result({"loss": 3, "n": {"a": 4}})}
    assert prefixed(results) == {"val_loss": 1, "val_n": {"a": 2}, "val_clean_loss": 3, "val_clean_a": 4}


@pytest.mark.parametrize(
    "value", [None, 1, "loss", [("loss", 1)], (), dict, object()], ids=lambda value: type(value).__name__
)
def test_what_is_no_mapping_is_refused_by_name(value):
    with pytest.raises(TypeError, match="metrics must be a mapping of names to values; got"):
        flat(value)
    with pytest.raises(TypeError, match="results must be a mapping of names to ValidationResult; got"):
        prefixed(value)
    with pytest.raises(TypeError, match="results must be a mapping of names to ValidationResult; got"):
        prefixed({"clean": value})


def deep(levels):
    metrics = {"loss": 1}
    for _ in range(levels):
        metrics = {"a": metrics}
    return metrics


def holding_itself():
    metrics = {}
    metrics["a"] = {"b": metrics}
    return metrics


@pytest.mark.parametrize("metrics", [holding_itself(), deep(100_000)], ids=["itself", "deep"])
def test_metrics_without_an_end_are_refused(metrics):
    with pytest.raises(ValueError, match="metrics must not hold themselves"):
        flat(metrics)
    with pytest.raises(ValueError, match="metrics must not hold themselves"):
        prefixed({"clean": result(metrics)})
