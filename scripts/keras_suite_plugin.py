"""A pytest plugin for `keras_suite.py`: routes `fit` and `evaluate` through `Trainer`, notes outcomes."""

from __future__ import annotations

import json
import os
import sys
import types
from pathlib import Path

import pytest

_outcomes: dict[str, str] = {}


def pytest_configure(config: pytest.Config) -> None:
    sys.path.append(os.environ["KERAS_SUITE_PACKAGES"])
    config.addinivalue_line("markers", "requires_trainable_backend: a mark of Keras's")
    # Of Keras's own conftest, which is not in the distribution, one test module imports this.
    conftest = types.ModuleType("conftest")
    conftest.skip_if_backend = lambda backend, reason: pytest.mark.skipif(
        backend == "tensorflow", reason=reason
    )
    sys.modules["conftest"] = conftest
    if os.environ["KERAS_SUITE_ROUTED"]:
        route()


def route() -> None:
    """Sends `fit` and `evaluate` of every Keras model through `Trainer`."""
    import overlap_train

    overlap_train.install()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    name = report.nodeid.split("/")[-1]
    if report.when == "call" or report.outcome != "passed":
        _outcomes[name] = report.outcome


def pytest_sessionfinish() -> None:
    Path(os.environ["KERAS_SUITE_OUTCOMES"]).write_text(json.dumps(_outcomes, indent=1))
