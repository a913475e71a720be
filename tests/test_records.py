"""What records say of themselves."""

from __future__ import annotations

import pytest

from overlap_train.records import Explanation, Reason, ValidationResult, flat, prefixed


@pytest.mark.parametrize(
    ("validates", "identifiers", "first"),
    [
        (True, [], "overlaps: trains up to 1 epoch ahead"),
        (
            True,
            ["lag-zero"],
            "in step: ValidationPolicy(max_lag=0) asks for it; leave max_lag at 1 [lag-zero]",
        ),
        (True, ["model-eager", "lag-zero"], "in step: the model runs eagerly"),
        (False, [], "in step: there is nothing to validate"),
    ],
)
def test_an_explanation_names_every_reason(validates, identifiers, first):
    reasons = tuple(map(Reason.of, identifiers))
    sizes = dict(plan=None, steps_per_epoch=None, workers=1, snapshot_bytes=0, data_bytes=0, tracing_s=0.0)
    explanation = Explanation(validates=validates, max_lag=int(not reasons), reasons=reasons, **sizes)
    assert str(explanation).startswith(first)
    assert explanation.overlaps is (explanation.in_step is None)
    assert all(f"in step: {reason}\n" in str(explanation) for reason in reasons)


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
