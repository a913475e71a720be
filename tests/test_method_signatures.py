"""Every argument of every public method, given what nobody means; `test_signatures.py` has the functions."""

from __future__ import annotations

import contextlib
import inspect
import itertools
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train.monitoring import AccountLog, AccountWriter, SpanRecorder
from overlap_train.scheduling import CostModel, MultiModelScheduler
from overlap_train.zero_copy import MappedBuffer
from tests.test_signatures import (
    PUBLIC,
    account,
    graph,
    model,
    parameters,
    part,
    platform,
    somewhere_else,
    span,
    walk,
)

__all__ = ["somewhere_else"]

_numbers = itertools.count()


def scheduler():
    return MultiModelScheduler({"served": model()}, devices=platform())


def picture():
    path = Path("picture.png")
    path.write_bytes(tf.io.encode_png(np.zeros((1, 1, 3), "uint8")).numpy())
    return path


# How an instance is made whose methods are called.
MADE = {
    "AccountLog": lambda: AccountLog("log.jsonl"),
    "AccountWriter": lambda: AccountWriter("logs"),
    "CostModel": CostModel,
    "MappedBuffer": lambda: MappedBuffer((4,)),
    "MultiModelScheduler": scheduler,
    "Platform": platform,
    "SpanRecorder": SpanRecorder,
}

# What else a method needs for one of its arguments to be tried.
GOOD: dict[str, dict[str, Any]] = {
    "AccountLog.write": {"account": account},
    "AccountWriter.write": {"account": account, "step": lambda: 1},
    "AccountWriter.write_picture": {"path": picture, "step": lambda: 1},
    "CostModel.observe": {
        "layer": lambda: graph().layers[0],
        "device": lambda: platform().devices[0],
        "seconds": lambda: 1.0,
    },
    "MultiModelScheduler.add": {"name": lambda: f"model {next(_numbers)}", "model": model},
    "MultiModelScheduler.remove": {"name": lambda: "served"},
    "MultiModelScheduler.submit": {"name": lambda: "served", "x": lambda: np.zeros((1, 4), "float32")},
    "SpanRecorder.add": {"span": span},
    "SpanRecorder.span": {"name": lambda: "work"},
}

# Asked by a policy for each place where a layer might run, with what other checks have let in.
ASKED_BY_POLICIES = {
    "CostModel.seconds",
    "Platform.transfer_s",
    "Transfer.seconds",
}
# Called by us with a batch, for users to override.
OVERRIDDEN = {"Trainer.train_step", "Trainer.validation_step"}
# `test_signatures.py` walks the checks that they make.
WALKED_THERE = {"Trainer.fit", "Trainer.evaluate"}


def methods():
    """Returns the public methods with arguments of all public classes but those whose methods Keras calls."""
    found = {}
    for kind in PUBLIC.values():
        if not inspect.isclass(kind) or issubclass(kind, (keras.layers.Layer, keras.callbacks.Callback)):
            continue
        ours = [each for each in kind.__mro__ if each.__module__.startswith("overlap_train")]
        if kind.__module__.startswith("overlap_train._"):
            continue
        for name in {name for each in ours for name in vars(each) if not name.startswith("_")}:
            method = inspect.getattr_static(kind, name)
            if inspect.isfunction(method) and parameters(method)[1:]:
                found[f"{kind.__name__}.{name}"] = kind
    return found


METHODS = methods()
TRIED = sorted(METHODS.keys() - ASKED_BY_POLICIES - OVERRIDDEN - WALKED_THERE)


def walk_method(name, chosen):
    kind, _, method = name.partition(".")
    with contextlib.ExitStack() as resources:
        made = MADE[kind]()
        if hasattr(made, "close"):
            resources.callback(made.close)
        return walk(name, chosen, getattr(made, method), GOOD.get(name, {}))


def test_the_tables_name_methods_and_classes_that_exist():
    assert METHODS.keys() >= ASKED_BY_POLICIES | OVERRIDDEN | WALKED_THERE | GOOD.keys()
    assert {name.partition(".")[0] for name in TRIED} == MADE.keys()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("chosen", [part, pytest.param(lambda *_: True, marks=pytest.mark.nightly, id="all")])
@pytest.mark.parametrize("name", TRIED)
def test_values_are_taken_or_refused_by_name(name, chosen):
    wrong = walk_method(name, chosen)
    assert not wrong, "\n".join(wrong)
