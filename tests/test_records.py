"""What records say of themselves."""

import pytest

from overlap_train._support.results import flat, prefixed
from overlap_train.records import EpochAccount, Explanation, FitAccount, Reason, ValidationResult

SIZES = dict(steps_per_epoch=None, workers=1, snapshot_bytes=0, data_bytes=0, tracing_s=0.0)


@pytest.mark.parametrize(
    ("validates", "identifiers", "first"),
    [
        (True, [], "overlaps: trains up to 1 epoch ahead"),
        (True, ["lag-zero"], "in step: ValidationPolicy(max_lag=0) asks for it\n  - leave max_lag at 1\n"),
        (True, ["model-eager", "lag-zero"], "in step: the model runs eagerly"),
        (False, [], "in step: there is nothing to validate"),
    ],
)
def test_an_explanation_names_every_reason(validates, identifiers, first):
    reasons = tuple(map(Reason.of, identifiers))
    lag = int(not reasons)
    explanation = Explanation(validates=validates, max_lag=lag, reasons=reasons, plan="<b>", **SIZES)
    assert str(explanation).startswith(first)
    assert explanation.overlaps is (explanation.in_step is None)
    assert all(f"in step: {reason}\n" in str(explanation) for reason in reasons)
    assert repr(explanation) == str(explanation)
    html = explanation._repr_html_()
    assert all(reason.sentence in html for reason in reasons)
    assert "&lt;b&gt;" in html
    assert "<b>" not in html


@pytest.mark.parametrize(
    ("seconds", "sentence"),
    [
        ((), "nothing was validated"),
        ((4.0, 3.7, 0.0, 0.0, 3.1), "validation 92% hidden; about 3.1 s saved; nothing waited"),
        ((2.0, 0.0, 2.0, 0.0, 0.0), "validation 0% hidden; no time saved; 2.0 s waited"),
        ((2.0, 2.0), "validation 100% hidden; nothing waited"),
        (
            (1.0, 0.5, 0.5, 2.0, -1.5),
            "validation 50% hidden; running ahead has cost about 1.5 s; 0.5 s waited; 2.0 s rolled back",
        ),
    ],
)
def test_what_was_gained_is_one_sentence(seconds, sentence):
    names = ("validated_s", "hidden_s", "waited_s", "rolled_back_s", "saved_s")
    given = dict(zip(names, seconds, strict=False))
    assert str(FitAccount(fit_s=9.0, prepared_s=1.0, **given)) == sentence


def test_the_seconds_of_an_epoch_are_those_of_the_training_thread():
    epoch = EpochAccount(0, 9, 1.0, 32.0, 64.0, 2.0, 4.0, 8.0, 16.0, 128.0)
    assert (epoch.seconds, epoch.rest_s) == (1 + 2 + 4 + 8 + 16 + 128, 4 + 8 + 128)


def test_nested_metrics_of_a_named_set_are_flattened():
    assert flat({"a": 1, "b": {"c": 2, "d": {"e": 3}}}) == {"a": 1, "c": 2, "e": 3}
    results = {"": ValidationResult({"loss": 1, "n": {"a": 2}})}
    results["clean"] = ValidationResult({"loss": 3, "n": {"a": 4}})
    assert prefixed(results) == {"val_loss": 1, "val_n": {"a": 2}, "val_clean_loss": 3, "val_clean_a": 4}
