"""Every argument of every public function, constructor and method, given what nobody means.

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
import itertools
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
from overlap_train._fit import evaluating
from overlap_train._support import fit_arguments
from overlap_train.conv import library
from overlap_train.models import mnist_data
from overlap_train.models.mnist_data import MnistArrays
from overlap_train.monitoring import AccountLog, AccountWriter, SpanRecorder
from overlap_train.records import EpochAccount, Span
from overlap_train.scheduling import CostModel, Device, MultiModelScheduler, Platform
from overlap_train.scheduling.graph import Layer, LayerGraph, Port, Work
from overlap_train.zero_copy import MappedBuffer

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


def few_digits():
    images, labels = np.zeros((2, 28, 28, 1), "uint8"), np.zeros(2, "int64")
    return MnistArrays(images, labels, images, labels, "made up")


def picture():
    path = Path("picture.png")
    path.write_bytes(tf.io.encode_png(np.zeros((1, 1, 3), "uint8")).numpy())
    return path


_numbers = itertools.count()
# What else a call needs for one of its arguments to be tried: by name of the callable, then of the argument.
GOOD: dict[str, dict[str, Any]] = {
    "replicate_to": {"arrays": few_digits},
    "AccountLog": {"path": lambda: "log.jsonl"},
    "AccountWriter": {"log_dir": lambda: "logs"},
    "CheckpointPolicy": {"directory": lambda: "checkpoints"},
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
    "AccountLog.write": {"account": lambda: account()},
    "AccountWriter.write": {"account": lambda: account(), "step": lambda: 1},
    "AccountWriter.write_picture": {"path": picture, "step": lambda: 1},
    "CostModel.observe": {
        "layer": lambda: graph().layers[0],
        "device": lambda: platform().devices[0],
        "seconds": lambda: 1.0,
    },
    "MultiModelScheduler.add": {"name": lambda: f"model {next(_numbers)}", "model": model},
    "MultiModelScheduler.remove": {"name": lambda: "served"},
    "MultiModelScheduler.submit": {"name": lambda: "served", "x": lambda: np.zeros((1, 4), "float32")},
    "SpanRecorder.add": {"span": lambda: span()},
    "SpanRecorder.span": {"name": lambda: "work"},
}

# How an instance is made whose methods are called.
MADE = {
    "AccountLog": lambda: AccountLog("log.jsonl"),
    "AccountWriter": lambda: AccountWriter("logs"),
    "CostModel": CostModel,
    "MappedBuffer": lambda: MappedBuffer((4,)),
    "MultiModelScheduler": lambda: MultiModelScheduler({"served": model()}, devices=platform()),
    "Platform": platform,
    "SpanRecorder": SpanRecorder,
}
# Asked by a policy for each place where a layer might run, with what other checks have let in.
ASKED_BY_POLICIES = {"CostModel.seconds", "Platform.transfer_s", "Transfer.seconds"}
# Called by us with a batch, for users to override.
OVERRIDDEN = {"Trainer.train_step", "Trainer.validation_step"}
# Their checks are walked as `fit` and `evaluate`, without a training for each value that is taken.
WALKED_AS_FUNCTIONS = {"Trainer.fit", "Trainer.evaluate"}


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


def methods():
    """Returns the public methods with arguments of all public classes but those whose methods Keras calls."""
    found = set()
    for kind in PUBLIC.values():
        if not inspect.isclass(kind) or issubclass(kind, (keras.layers.Layer, keras.callbacks.Callback)):
            continue
        ours = [each for each in kind.__mro__ if each.__module__.startswith("overlap_train")]
        if kind.__module__.startswith("overlap_train._"):
            continue
        for name in {name for each in ours for name in vars(each) if not name.startswith("_")}:
            method = inspect.getattr_static(kind, name)
            if inspect.isfunction(method) and parameters(method)[1:]:
                found.add(f"{kind.__name__}.{name}")
    return found


METHODS = methods()
TRIED = sorted(METHODS - ASKED_BY_POLICIES - OVERRIDDEN - WALKED_AS_FUNCTIONS)


@contextlib.contextmanager
def public_callable(name):
    """Give a public callable by its name; a method is that of an instance, which is closed then."""
    kind, _, method = name.partition(".")
    if not method:
        yield PUBLIC[name]
        return
    with contextlib.ExitStack() as resources:
        made = MADE[kind]()
        if hasattr(made, "close"):
            resources.callback(made.close)
        yield getattr(made, method)


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


def walk(name, call, chosen):
    """Return what is wrong with how a public callable answers the values for which `chosen` is true."""
    wrong, good = [], GOOD.get(name, {})
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


def test_the_tables_name_methods_and_classes_that_exist():
    named = {name for name in GOOD if "." in name}
    assert ASKED_BY_POLICIES | OVERRIDDEN | WALKED_AS_FUNCTIONS | named <= METHODS
    assert {name.partition(".")[0] for name in TRIED} == MADE.keys()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("chosen", [part, pytest.param(lambda *_: True, marks=pytest.mark.nightly, id="all")])
@pytest.mark.parametrize("name", [*sorted(PUBLIC), *TRIED])
@pytest.mark.by_default("tiled_conv2d-part", *(f"{name}-part" for name in TRIED))
def test_values_are_taken_or_refused_by_name(name, chosen):
    with public_callable(name) as call:
        wrong = walk(name, call, chosen)
    assert not wrong, "\n".join(wrong)
