"""Every argument of every public function and constructor, given what nobody means.

A value is taken as documented, or refused within a second by ValueError or TypeError that names the argument:
never another error, never a wait, never a thread that is left. The default suite walks a part, which depends
on nothing but the names; `scripts/nightly.sh` walks all.
"""

from __future__ import annotations

import contextlib
import decimal
import enum
import fractions
import importlib
import inspect
import re
import signal
import threading
import time
import zlib
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import overlap_train
from overlap_train._checkpoint.container import CheckpointState
from overlap_train._checkpoint.store import CheckpointStore
from overlap_train._fit import evaluating
from overlap_train._support import fit_arguments
from overlap_train.conv import library
from overlap_train.models import mnist_data
from overlap_train.models.mnist_data import MnistArrays
from overlap_train.records import EpochAccount, Span
from overlap_train.scheduling import Device, Platform
from overlap_train.scheduling.graph import Layer, LayerGraph, Port, Work

PACKAGES = ["", ".conv", ".monitoring", ".options", ".parallel", ".records", ".scheduling", ".zero_copy"]
LIMIT_S = 10  # hit by what hangs, not by what a busy machine delays
SHOWN = [None, True, False, 0, 1, -1, 3, 10**30, -(2**63), 0.0, 0.5, -0.5, 2.5, 1e300, 1j, "", "x", "auto"]
SHOWN += [
    *map(float, ("nan", "inf", "-inf")),
    b"x",
    (),
    (1, 2),
    (None,),
    ["x"],
    [[[]]],
    {},
    {"a": 1},
    {1: None},
]
SHOWN += [{1}, Exception, range(3), range(10**18), ..., decimal.Decimal("1.5"), fractions.Fraction(1, 2)]
SHOWN += [
    np.int64(3),
    np.float32(0.5),
    np.float64("nan"),
    np.True_,
    np.str_("x"),
    np.datetime64("2020-01-01"),
]
VALUES = {repr(value): value for value in SHOWN} | {
    "10**5000": 10**5000,
    "null": "a\0b",
    "long text": "x" * 10_000,
    "object": object(),
    "function": lambda *_: None,
    "array of one": np.array(2),
    "array of two": np.array([1, 2]),
    "array of text": np.array(["a", "b"]),
    "empty array": np.zeros((0, 3)),
}


def model():
    network = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    network.compile("sgd", "mse")
    return network


def graph():
    return LayerGraph([Layer("layer", Work("dense"), (Port(-1),))], [Port(0)])


def platform():
    return Platform((Device("CPU:0"),))


# What else a call needs for one of its arguments to be tried: by name of the callable, then of the argument.
def few_digits():
    images, labels = np.zeros((2, 28, 28, 1), "uint8"), np.zeros(2, "int64")
    return MnistArrays(images, labels, images, labels, "made up")


GOOD: dict[str, dict[str, Any]] = {
    "replicate_to": {"arrays": few_digits},
    "AccountLog": {"path": lambda: "log.jsonl"},
    "AccountWriter": {"log_dir": lambda: "logs"},
    "CheckpointPolicy": {"directory": lambda: "checkpoints"},
    "CheckpointStore": {"directory": lambda: "checkpoints"},
    "ConvKey": {
        "direction": lambda: "forward",
        "dtype": lambda: "float32",
        "input_shape": lambda: (1, 8, 8, 3),
        "filter_shape": lambda: (3, 3, 3, 4),
        "strides": lambda: (1, 1),
        "padding": lambda: "SAME",
    },
    "Device": {"name": lambda: "CPU:0"},
    "EvaluationFunction": {"function": lambda: lambda model: 0.0},
    "EvaluatorPolicy": {"directory": lambda: "run"},
    "MappedBuffer": {"shape": lambda: (4,)},
    "MultiModelScheduler": {"devices": lambda: [Device("CPU:0")]},
    "Platform": {"devices": lambda: (Device("CPU:0"),)},
    "ResidentLimit": {"array": lambda: mapped(), "limit_bytes": lambda: 1 << 20},
    "TiledConv2D": {"filters": lambda: 2, "kernel_size": lambda: 3},
    "Trainer": {"model": model},
    "ValidationSet": {"data": lambda: (np.zeros((4, 4)), np.zeros((4, 2)))},
    "accelerate": {"model": model, "verbose": lambda: 0},
    "as_array": {"tensor": lambda: tf.constant([1.0])},
    "as_tensor": {"array": lambda: np.zeros(4)},
    "evaluate": {"batch_size": lambda: 1, "steps": lambda: 1, "verbose": lambda: 0},
    "evaluate_run": {
        "directory": lambda: "run",
        "model": model,
        "functions": lambda: {"length": lambda model: 0.0},
        "timeout_s": lambda: 0.0,
    },
    "empty": {"shape": lambda: (4,)},
    "explain": {"array": lambda: np.zeros(4)},
    "load_mnist": {"download": lambda: False},
    "format_epoch_table": {"rows": lambda: [(account(), {})]},
    "layout": {"variables": lambda: model().variables},
    "overlap_s": {"spans_a": lambda: [span()], "spans_b": lambda: [span()]},
    "save_chrome_trace": {"path": lambda: "trace.json", "spans": lambda: [span()]},
    "save_timeline": {"path": lambda: "timeline.png", "spans": lambda: [span()]},
    "tiled_conv2d": {
        "x": lambda: np.zeros((1, 4, 4, 1), "f4"),
        "filters": lambda: np.zeros((3, 3, 1, 1), "f4"),
    },
}


# Their messages show a value by its `repr`, which these lack.
UNSHOWN = {("Trainer", "preprocess")}


def span():
    return Span("train", "main", 0.0, 1.0)


def account():
    return EpochAccount(epoch=0, steps=1, trained_s=1.0)


def mapped():
    np.save("mapped.npy", np.zeros(1 << 14))
    return np.load("mapped.npy", mmap_mode="r")


def public():
    """Returns all public callables by their names, with what they take."""
    found = {}
    for package in PACKAGES:
        module = importlib.import_module(f"overlap_train{package}")
        for name in module.__all__:
            value = getattr(module, name)
            if not callable(value) or inspect.isabstract(value) or getattr(value, "_is_protocol", False):
                continue
            if type(value).__module__ == "typing" or isinstance(value, enum.EnumMeta):
                continue
            found[name] = value
    for path in sorted(Path(overlap_train.__file__).parent.glob("models/*.py")):
        module = importlib.import_module(f"overlap_train.models.{path.stem}")
        found |= {name: getattr(module, name) for name in getattr(module, "__all__", ())}
    # The same checks as `Trainer.fit` and `evaluate` make, without a training for each value that is taken.
    found |= {"CheckpointState": CheckpointState, "CheckpointStore": CheckpointStore}
    return found | {"fit": fit_arguments.FitNumbers, "evaluate": evaluating.check_evaluate}


PUBLIC = public()


def parameters(value, *, required=False):
    """Returns the names of the parameters of a callable, or of those that it requires."""
    with contextlib.suppress(ValueError):
        return [
            p.name
            for p in inspect.signature(value).parameters.values()
            if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and (p.default is p.empty or not required)
        ]
    return []


def documented_errors(value):
    """Returns the names of the errors that the documentation announces."""
    text = " ".join(filter(None, [inspect.getdoc(value), inspect.getdoc(getattr(value, "__init__", None))]))
    return set(re.findall(r"\b\w+Error\b", text)) - {"ValueError", "TypeError"}


@contextlib.contextmanager
def limited(what):
    def stop(*_):
        raise AssertionError(f"{what} had not come back after {LIMIT_S} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def called(call, given):
    """Calls with arguments by name, and by position where there is no other way."""
    alone = [p.name for p in inspect.signature(call).parameters.values() if p.kind is p.POSITIONAL_ONLY]
    return call(*(given[name] for name in alone), **{n: v for n, v in given.items() if n not in alone})


def attempt(call, good, argument, value):
    """Return what is wrong with how a callable answers a value; `good` makes its other arguments by name."""
    # What only records something takes anything for what it needs.
    given: dict[str, Any] = dict.fromkeys(parameters(call, required=True))
    given |= {key: make() for key, make in good.items() if key != argument}
    began_s = time.thread_time()  # of this thread's work: a wait is stopped by the alarm
    try:
        result = called(call, given | {argument: value})
    except (ValueError, TypeError) as error:
        if time.thread_time() - began_s > 1:
            return "refused after more than a second"
        if type(error).__name__ in documented_errors(call):
            return None
        named = re.search(rf"\b{argument}\b", str(error))
        return None if named else f"{type(error).__name__} that does not name it: {error}"
    except Exception as error:
        kinds = {kind.__name__ for kind in type(error).__mro__}
        return None if kinds & documented_errors(call) else f"{type(error).__name__}: {error}"
    if hasattr(result, "close"):
        result.close()
    return None


def walk(name, chosen, call=None, good=None):
    """Return what is wrong with how a public callable answers the values for which `chosen` is true.

    `call` is the callable where it is none of `PUBLIC`, and `good` makes its other arguments then.
    """
    wrong = []
    call, good = (PUBLIC[name], GOOD.get(name, {})) if call is None else (call, good or {})
    before = set(threading.enumerate())
    for argument in parameters(call):
        for shown, value in VALUES.items():
            if not chosen(name, argument, shown):
                continue
            if (name, argument) in UNSHOWN and shown == "10**5000":
                continue
            with limited(f"{name}({argument}={shown})"):
                problem = attempt(call, good, argument, value)
            if problem is not None:
                wrong.append(f"{name}({argument}={shown}): {problem[:300]}")
    left = {thread.name for thread in set(threading.enumerate()) - before if thread.is_alive()}
    return wrong + [f"{name} left the thread {thread}" for thread in sorted(left)]


@pytest.fixture(autouse=True)
def somewhere_else(tmp_path, monkeypatch):
    """Relative paths lead nowhere, no call builds the convolution, and none can size the thread pools.

    Nor does one decode seventy thousand images.
    """
    tf.config.list_logical_devices()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OVERLAP_TRAIN_CONV_DISABLE", "1")
    monkeypatch.setattr(library, "_state", library._State())
    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.setattr(mnist_data, "_read", lambda directory: few_digits())
    yield
    overlap_train.uninstall()


def part(name, argument, shown):
    return zlib.crc32(f"{name} {argument} {shown}".encode()) % 8 == 0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("chosen", [part, pytest.param(lambda *_: True, marks=pytest.mark.nightly, id="all")])
@pytest.mark.parametrize("name", sorted(PUBLIC))
@pytest.mark.by_default("tiled_conv2d-part")
def test_values_are_taken_or_refused_by_name(name, chosen):
    wrong = walk(name, chosen)
    assert not wrong, "\n".join(wrong)
