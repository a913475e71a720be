"""`scripts/keras_suite.sh`: what it compares of Keras's tests, on tests of ours in the place of Keras's."""

from __future__ import annotations

import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from scripts import keras_suite

SCRIPT = Path(keras_suite.__file__)
FIT = """
import keras
import numpy as np


def fitted(x, **arguments):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model, model.fit(x, x[:, :1], verbose=0, **arguments)


def test_of_a_shape():
    _, history = fitted(np.random.default_rng(0).normal(size=(8, 2)), batch_size=4)
    assert len(history.history["loss"]) == 1


def test_that_stock_keras_fails():
    fitted(np.ones((4, 2)))
    raise ValueError


def test_without_a_fit():
    assert True
"""
# In the place of the route through `Trainer`: a door that trains on other data than it is given.
OTHER_DATA = """
import keras_suite_plugin as plugin


def route():
    from overlap_train._keras.names import KerasTrainer

    plugin.watch()
    watched = KerasTrainer.fit
    KerasTrainer.fit = lambda self, x, y, **arguments: watched(self, x + 1, y, **arguments)


plugin.route = route
"""


def suite_of(place: Path, **modules: str) -> keras_suite.Suite:
    """Returns a suite of modules with these texts."""
    tests = place / "modules"
    tests.mkdir(parents=True, exist_ok=True)
    for name, text in modules.items():
        (tests / f"{name}.py").write_text(text)
    return keras_suite.Suite(place, tests, [tests / f"{name}.py" for name in modules], "", 120)


def options(**given: bool) -> Namespace:
    return Namespace(**{"tests": "", "all": False, **given})


def never(name: str, calls: object) -> bool:
    """Stock Keras comes to its numbers alone."""
    return False


@pytest.mark.parametrize(
    ("expected", "actual", "where"),
    [
        ([1.0, {"loss": 2.0}], [1.0005, {"loss": 2.0}], None),
        (float("nan"), float("nan"), None),
        (float("inf"), float("inf"), None),
        ([1.0, {"loss": 2.0}], [1.0, {"loss": 2.1}], "/1/loss: 2.0 became 2.1"),
        ([1.0, 2.0], [1.0], ": 2 became 1"),
        ({"loss": 1.0}, {"loss": 1.0, "mae": 1.0}, ": ['loss'] became ['loss', 'mae']"),
        ({"error": "ValueError"}, {"error": "TypeError"}, "/error: ValueError became TypeError"),
        (1.0, float("nan"), ": 1.0 became nan"),
        (0.0, None, ": 0.0 became None"),
    ],
)
def test_numbers_differ_beyond_rounding_only(expected, actual, where):
    assert keras_suite.first_difference(expected, actual) == where


def test_every_exception_has_a_reason_and_no_other_test_may_differ(capsys):
    (known, *_) = keras_suite.EXCEPTIONS
    passed, failed = ({"outcome": outcome, "calls": []} for outcome in ("passed", "failed"))
    expected = {known: passed, "other": passed}
    assert all(keras_suite.EXCEPTIONS.values())
    assert keras_suite.report("family", expected, {known: failed, "other": passed}, options(), never)
    assert f"may differ: {known}" in capsys.readouterr().out
    assert not keras_suite.report("family", expected, {known: failed, "other": failed}, options(), never)
    assert "differs: other (failed)" in capsys.readouterr().out
    assert not keras_suite.report("family", {"other": passed}, {}, options(), never)  # it was not run
    assert not keras_suite.report("family", {}, {}, options(), never)  # nothing was


@pytest.mark.nightly
@pytest.mark.timeout(240)
def test_both_runs_of_a_suite_agree(tmp_path):
    version = keras_suite.installed_version()
    suite_of(tmp_path / version, suite_trainers_trainer_test=FIT)
    command = [sys.executable, SCRIPT, f"--directory={tmp_path}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 of 2 tests that stock Keras passes pass routed" in done.stdout
    routed = keras_suite.outcomes_of(tmp_path / version / "fit_and_callbacks.routed.jsonl")
    (call,) = routed["suite_trainers_trainer_test.py::test_of_a_shape"]["calls"]
    assert call["call"] == "fit"
    assert len(call["result"]["loss"]) == 1
    assert len(call["variables"]) == 2


@pytest.mark.nightly
@pytest.mark.timeout(240)
def test_a_test_of_a_shape_alone_has_its_numbers_compared(tmp_path, monkeypatch, capsys):
    (tmp_path / "other_data.py").write_text(OTHER_DATA)
    suite = suite_of(tmp_path, test_fit=FIT)
    stock, routed = tmp_path / "stock.jsonl", tmp_path / "routed.jsonl"
    suite.run(stock)
    environment = keras_suite.Suite._environment

    def of_other_data(*arguments: object) -> dict[str, str]:
        there = environment(*arguments)
        path = f"{tmp_path}:{there['PYTHONPATH']}"
        return {**there, "PYTHONPATH": path, "PYTEST_ADDOPTS": "-p other_data"}

    monkeypatch.setattr(keras_suite.Suite, "_environment", of_other_data)
    suite.run(routed, stock)
    outcomes = [keras_suite.outcomes_of(journal) for journal in (stock, routed)]
    assert not keras_suite.report("family", *outcomes, options(), never)
    assert "other numbers: test_fit.py::test_of_a_shape: /0/result/loss/0" in capsys.readouterr().out
