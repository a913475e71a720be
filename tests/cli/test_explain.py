"""`overlap-train explain` and `estimate` of a script."""

from __future__ import annotations

import json

import pytest

from overlap_train.cli.main import main
from tests.cli.test_script import HEAD

LISTENS = """
class Begins(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        raise AssertionError("nothing is trained")
"""


@pytest.fixture
def told(tmp_path, capsys):
    """Returns what a command says of a script, as a dict, and its exit status."""

    def run(command, body):
        path = tmp_path / "training.py"
        path.write_text(HEAD + body)
        status = main([command, "--json", str(path)])
        output = capsys.readouterr()
        return status, json.loads(output.out) if output.out else output.err

    return run


def findings(report, section):
    return {finding["name"]: finding for finding in report["sections"][section]}


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


def test_an_estimate_has_its_units(told):
    status, report = told(
        "estimate", "overlap_train.Trainer(model).fit(x, x[:, :1], 2, validation_split=0.5)"
    )
    memory, time = findings(report, "memory"), findings(report, "time")
    assert status == 0
    assert memory["snapshots_bytes"]["value"] == 2 * memory["snapshot_bytes"]["value"] > 0
    assert memory["data_bytes"]["value"] == 4 * (2 + 1) * 4  # rows, columns, bytes of a float32
    assert time["step_s"]["value"] > 0
    assert time["first_epoch_s"]["value"] > 0
