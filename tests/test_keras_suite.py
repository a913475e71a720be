"""`scripts/keras_suite.sh`: what it compares of Keras's tests, on tests of ours in the place of Keras's."""

from __future__ import annotations

import functools
import json
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
# 1, 0, 1 and so on, by a file.
BY_TURNS = (
    "(file := __import__('pathlib').Path(%r)).write_text(str(1 - int(file.read_text())))"
    " * int(file.read_text())"
)
CRASH = """
import os


def test_before(): ...


def test_that_ends_the_process():
    os._exit(139)


def test_behind(): ...
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
    return Namespace(**{"tests": "", "longer": False, "all": False, **given})


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


def test_tests_are_laid_out_outside_the_package_of_keras():
    text = "from keras.src.layers.layer_test import Mock\nfrom keras.src import testing\n"
    redirected = "from suite_layers_layer_test import Mock\nfrom keras.src import testing\n"
    assert keras_suite.redirected(text) == redirected
    assert keras_suite.module_name("layers/layer_test.py") == "suite_layers_layer_test.py"


def test_families_are_rooms_of_keras(tmp_path):
    names = ["callbacks_history", "layers_core_dense", "layers_rnn_gru", "trainers_trainer", "models_model"]
    for name in names:
        (tmp_path / f"suite_{name}_test.py").touch()
    some = keras_suite.families_of(tmp_path, everything=False)
    assert [path.stem for path in some["fit_and_callbacks"]] == [
        "suite_callbacks_history_test",
        "suite_trainers_trainer_test",
    ]
    every = keras_suite.families_of(tmp_path, everything=True)
    assert sorted(every) == ["callbacks", "layers_core", "layers_rnn", "models", "trainers"]
    assert sum(map(len, every.values())) == len(names)


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
    environment = suite._environment

    def of_other_data(*arguments: object) -> dict[str, str]:
        there = environment(*arguments)
        path = f"{tmp_path}:{there['PYTHONPATH']}"
        return {**there, "PYTHONPATH": path, "PYTEST_ADDOPTS": "-p other_data"}

    monkeypatch.setattr(suite, "_environment", of_other_data)
    suite.run(routed, stock)
    outcomes = [keras_suite.outcomes_of(journal) for journal in (stock, routed)]
    assert not keras_suite.report("family", *outcomes, options(), never)
    assert "other numbers: test_fit.py::test_of_a_shape: /0/result/loss/0" in capsys.readouterr().out


@pytest.mark.nightly  # five processes
@pytest.mark.timeout(240)
def test_numbers_that_stock_keras_comes_to_by_chance_are_taken(tmp_path, monkeypatch, capsys):
    turn = tmp_path / "turn"
    turn.write_text("0")
    suite = suite_of(tmp_path, test_fit=FIT.replace("default_rng(0)", f"default_rng({BY_TURNS % str(turn)})"))
    journals = [tmp_path / f"{name}.jsonl" for name in ("first", "second")]
    for journal in journals:
        suite.run(journal)
    first, second = map(keras_suite.outcomes_of, journals)
    monkeypatch.setattr(keras_suite, "AGAIN", 2)
    repeated = functools.partial(keras_suite.repeats, suite, tmp_path / "again.jsonl")
    assert keras_suite.report("family", first, second, options(), repeated)
    name = "test_fit.py::test_of_a_shape"
    assert f"stock Keras gives one number or another: {name}" in capsys.readouterr().out
    assert not repeated(name, [])


@pytest.mark.nightly
@pytest.mark.timeout(120)
def test_a_test_that_ends_the_process_costs_itself_only(tmp_path):
    journal = tmp_path / "stock.jsonl"
    suite_of(tmp_path, test_crash=CRASH).run(journal)
    outcomes = [json.loads(line) for line in journal.read_text().splitlines()]
    last = {line["name"].split("::")[1]: line["outcome"] for line in outcomes}
    assert last == {"test_before": "passed", "test_that_ends_the_process": "crashed", "test_behind": "passed"}
