"""A pytest plugin for `keras_suite.py`: routes `fit` and `evaluate` through `Trainer`, notes outcomes."""

from __future__ import annotations

import functools
import json
import os
import re
import sys
import types
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from keras_suite import outcomes_of

_outcomes: dict[str, str] = {}
_calls: list[dict[str, Any]] = []
_within: list[str] = []
_unrouted: dict[str, list[str]] = {}


def pytest_configure(config: pytest.Config) -> None:
    sys.path.append(os.environ["KERAS_SUITE_PACKAGES"])
    config.addinivalue_line("markers", "requires_trainable_backend: a mark of Keras's")
    # Of Keras's own conftest, which is not in the distribution, some test modules import this.
    conftest = types.ModuleType("conftest")
    conftest.skip_if_backend = lambda backend, reason: pytest.mark.skipif(
        backend == "tensorflow", reason=reason
    )
    sys.modules["conftest"] = conftest
    from overlap_train._keras.names import KerasTrainer

    # The tests of releases before 3.16 know it by its name of then.
    setattr(sys.modules[KerasTrainer.__module__], "TensorFlowTrainer", KerasTrainer)  # noqa: B010
    seed_data()
    if os.environ["KERAS_SUITE_ROUTED"]:
        route()
    else:
        watch()


def seed_data() -> None:
    """Has Keras's maker of test data draw the same in both runs, where a test gives no seed."""
    from keras.src.testing import test_utils

    test_utils.get_test_data.__defaults__ = (0,)


def route() -> None:
    """Sends `fit` and `evaluate` of every Keras model through `Trainer`, and notes what comes of them."""
    from overlap_train import routing

    handle = routing.Routing.__call__

    def noted(self: Any, original: Any, model: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        call = functools.partial(handle, self, original, model, name)
        return _recorded(call, model, name, args, kwargs)

    setattr(routing.Routing, "__call__", noted)  # noqa: B010 (a method)
    routing.install()


def watch() -> None:
    """Notes what comes of Keras's own `fit` and `evaluate`, whose objects stay as they are."""
    from overlap_train._keras.names import KerasTrainer

    for name in ("fit", "evaluate"):
        (cell,) = (
            cell
            for cell in getattr(KerasTrainer, name).__closure__
            if getattr(cell.cell_contents, "__name__", "") == name
        )
        cell.cell_contents = _watched(cell.cell_contents, name)


def _watched(method: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(method)
    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        return _recorded(functools.partial(method, self), self, name, args, kwargs)

    return watched


def _recorded(call: Callable[..., Any], model: Any, name: str, args: Any, kwargs: Any) -> Any:
    """Calls, and keeps numbers of the result if it is not a call within another."""
    if _within:
        return call(*args, **kwargs)
    _within.append(name)
    seen: dict[str, Any] = {"call": name}
    _calls.append(seen)
    try:
        result = call(*args, **kwargs)
        seen["result"] = _plain(getattr(result, "history", result))
        return result
    except Exception as error:
        seen["error"] = type(error).__name__
        raise
    finally:
        _within.clear()
        seen["variables"] = [_sums(variable) for variable in model.variables]
        optimizer = getattr(model, "optimizer", None)
        if optimizer is not None:
            seen["optimizer"] = [_sums(variable) for variable in optimizer.variables]


def _sums(variable: Any) -> list[float]:
    """Returns what tells one value of a variable from another, whatever its shape."""
    try:
        values = np.asarray(variable.numpy(), np.float64).ravel()
    except Exception:  # not built, deleted or on another device
        return []
    return [float(values.sum()), float((values * np.cos(np.arange(values.size))).sum())]


def _plain(result: Any) -> Any:
    if isinstance(result, dict):
        return {str(name): _plain(value) for name, value in result.items()}
    if isinstance(result, list | tuple):
        return [_plain(value) for value in result]
    try:
        return float(result)
    except (TypeError, ValueError):
        return type(result).__name__


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what has an outcome, and in a routed run of all tests those which call nothing routed."""
    done = {
        name
        for name, line in outcomes_of(Path(os.environ["KERAS_SUITE_JOURNAL"])).items()
        if line["outcome"] != "running"
    }
    calling = os.environ["KERAS_SUITE_CALLING"]
    wanted = None
    if calling:
        stock = outcomes_of(Path(calling))
        wanted = {name for name, line in stock.items() if line["calls"] and line["outcome"] == "passed"}
    kept: list[pytest.Item] = []
    left: list[pytest.Item] = []
    for item in items:
        name = _name(item.nodeid)
        (left if name in done or (wanted is not None and name not in wanted) else kept).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=left)


def pytest_runtest_logstart(nodeid: str) -> None:
    _calls.clear()
    _note(nodeid, "running")


def pytest_runtest_setup(item: pytest.Item) -> None:
    import keras

    keras.utils.set_random_seed(zlib.crc32(_name(item.nodeid).encode()))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    name = _name(report.nodeid)
    if (report.when == "call" or report.outcome != "passed") and _outcomes.get(name) != "failed":
        _outcomes[name] = report.outcome


def pytest_warning_recorded(warning_message: warnings.WarningMessage, nodeid: str) -> None:
    """Keeps what is said of a call that `Trainer` refuses and Keras then takes."""
    if "is not routed" in str(warning_message.message):
        _unrouted.setdefault(_name(nodeid), []).append(str(warning_message.message))
        _note(nodeid, _outcomes[_name(nodeid)])  # once more: pytest tells of warnings behind a test


def pytest_runtest_logfinish(nodeid: str) -> None:
    _note(nodeid, _outcomes.get(_name(nodeid), "not run"))


def _name(nodeid: str) -> str:
    return re.sub(r" ?at ?0x[0-9a-f]+", "", nodeid)


def _note(nodeid: str, outcome: str) -> None:
    line: dict[str, Any] = {"name": _name(nodeid), "outcome": outcome, "calls": _calls}
    if line["name"] in _unrouted:
        line["unrouted"] = _unrouted[line["name"]]
    with Path(os.environ["KERAS_SUITE_JOURNAL"]).open("a") as journal:
        journal.write(json.dumps(line) + "\n")
