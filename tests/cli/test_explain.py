"""`overlap-train explain` of a script."""

from __future__ import annotations

from tests.cli.conftest import findings

LISTENS = """
class Begins(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        raise AssertionError("nothing is trained")
"""


def test_a_fit_that_overlaps(told):
    status, report = told("explain", "overlap_train.Trainer(model).fit(x, x[:, :1], validation_split=0.5)")
    assert status == 0
    assert findings(report, "fit")["overlap"]["value"] is True


def test_a_fit_in_step_says_why_and_what_would_change_it(told):
    body = (
        f"{LISTENS}overlap_train.Trainer(model).fit(x, x[:, :1], validation_split=0.5, callbacks=[Begins()])"
    )
    status, report = told("explain", body)
    overlap = findings(report, "fit")["overlap"]
    assert status == 0
    assert overlap["value"] is False
    assert "Begins.on_epoch_begin" in overlap["text"]
    assert 'on_change="continue"' in overlap["remedy"]


def test_a_fit_of_keras_is_told_what_to_write(told):
    _, report = told("explain", "model.fit(x, x[:, :1], validation_split=0.5)")
    assert "Trainer(model).fit" in findings(report, "fit")["called"]["remedy"]
    assert findings(report, "fit")["overlap"]["value"] is True


def test_a_fit_that_would_raise_is_wrong_usage(told):
    status, error = told("explain", "overlap_train.Trainer(model).fit(x, x[:, :1], epochs=-1)")
    assert status == 2
    assert "epochs" in error
